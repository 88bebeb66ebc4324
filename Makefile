# `make demo` shows the main job, `make test` passes the tests; each does all the set-up on a bare Debian 12 or 13.
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
SHORT := not slow and not container and not slurm and not network
# A file's tests share what they set up, so a file goes to one worker.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml scripts/setup
	@bash scripts/setup $(VENV)

setup: $(READY)  ## a virtualenv with lockd and its tools in .venv

demo: $(READY)  ## build a real venv, accept it, drift it in five ways, watch lockd say so
	@$(PY) demo/run.py

story: $(READY)  ## act out the story in a real container (root; lxc, mmdebstrap): what changed since it was fast, and the way back
	@$(PY) -m story

test: $(READY)  ## lint, types and the tests that take seconds
	@bash scripts/check $(VENV)
	@failed=0; $(PY) -m pytest $(PARALLEL) -m "$(SHORT) and not alone" || failed=1; \
	$(PY) -m pytest -m "$(SHORT) and alone" || failed=1; exit $$failed

test-long: $(READY)  ## the tests that take minutes: real torch, containers, Slurm (what the machine allows)
	@$(PY) -m pytest $(PARALLEL) -m "slow or container or slurm or network" -rs

docs: $(READY)  ## write again what is made from the code: docs/facts.md, docs/schemas
	@$(PY) scripts/make_docs.py

bench: $(READY)  ## measure against git, b3sum, sha256sum and AIDE; results in benchmarks/README.md
	@$(PY) benchmarks/run.py

clean:  ## remove what the commands above made here
	rm -rf $(VENV) .demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help setup demo story test test-long docs bench clean
