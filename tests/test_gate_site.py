"""The site hook in a real virtualenv: which launches it refuses, what it never touches, how it comes and goes."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockd.gates import compiled, site
from lockd.gates.hook import which
from lockd.probes.python import hook
from tests.gating import Gated, gated, write_policy


@pytest.fixture
def scene(tmp_path: Path) -> Gated:
    return gated(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    """One scene for many launches, good again after each."""
    return gated(tmp_path_factory.mktemp("shared"))


# -- launches


def test_an_admitted_launch_runs_and_is_recorded(scene: Gated) -> None:
    done = scene.launch(scene.train, "--lr", "1")
    assert (done.code, done.out, done.err) == (0, "", "")
    (run,) = scene.runs()
    assert (run["gate"], run["verdict"], run["exit"]) == ("site", "ok", "unknown")
    assert run["argv"] == [str(scene.python), str(scene.train), "--lr", "1"]


def _through_link(scene: Gated) -> list[str | Path]:
    link = scene.root / "elsewhere" / "other_name.py"
    link.parent.mkdir()
    link.symlink_to(scene.train)
    return [link]


def _through_hard_link(scene: Gated) -> list[str | Path]:
    (scene.root / "job" / "again.py").hardlink_to(scene.train)
    return ["job/again.py"]


def _by_glob(scene: Gated) -> list[str | Path]:
    return [scene.file("more/deep/er/step_3.py", scene.train.read_text())]


def _as_module(scene: Gated) -> list[str | Path]:
    scene.file("pkg/__init__.py", "")
    scene.file("pkg/train.py", scene.train.read_text())
    return ["-m", "pkg.train"]


def _under_launcher(scene: Gated) -> list[str | Path]:
    starter = "import runpy, sys; sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')\n"
    return [scene.file("bin/torchrun", starter), "--nproc-per-node=2", "job/train.py"]


LAUNCHES: dict[str, Callable[[Gated], list[str | Path]]] = {
    "absolute": lambda scene: [scene.train],
    "relative": lambda scene: ["job/train.py"],
    "dotted": lambda scene: ["job/../job/./train.py"],
    "options": lambda scene: ["-u", "-W", "ignore", "-Xdev", "-B", "job/train.py"],
    "isolated": lambda scene: ["-I", "job/train.py"],
    "no user site": lambda scene: ["-E", "-s", "job/train.py"],
    "symlink": _through_link,
    "hard link": _through_hard_link,
    "glob": _by_glob,
    "module": _as_module,
    "profiler": lambda scene: ["-m", "cProfile", "-o", "/dev/null", "job/train.py"],
    "launcher": _under_launcher,
}


@pytest.mark.parametrize("form", LAUNCHES)
def test_a_launch_in_any_form_is_refused(shared: Gated, form: str) -> None:
    scene, words = shared, LAUNCHES[form](shared)
    (scene.root / "ran").unlink(missing_ok=True)
    scene.drift()
    done = scene.launch(*words)
    assert (done.code, scene.ran) == (78, [])
    assert "lockd: refused" in done.err and "model.py" in done.err and "restore" in done.err
    assert "Traceback" not in done.err
    scene.heal()
    assert scene.launch(*words).code == 0 and len(scene.ran) == 1


def test_the_script_as_a_module_from_its_folder(shared: Gated) -> None:
    scene = shared
    (scene.root / "ran").unlink(missing_ok=True)
    scene.drift()
    assert scene.launch("-m", "train", cwd=scene.root / "job").code == 78
    env = {"PYTHONPATH": str(scene.root / "job")}
    assert scene.launch("-m", "train", env=env).code == 78
    assert scene.ran == []
    scene.heal()


@pytest.mark.parametrize(
    "words",
    [
        ("-c", "print(1)", "job/train.py"),
        ("-m", "compileall", "-q", "job/train.py"),
        ("-m", "json.tool", "job/data.json"),
        ("job/other.py", "job/train.py"),
        ("-V",),
    ],
)
def test_what_is_no_launch_passes(shared: Gated, words: tuple[str, ...]) -> None:
    scene, before = shared, shared.runs()
    scene.file("job/other.py", "pass\n")
    scene.file("job/data.json", "{}")
    scene.drift()
    done = scene.launch(*words)
    assert (done.code, done.err) == (0, "")
    assert scene.launch(input=b"print(2)", stdin=None).out == "2\n"
    scene.heal()
    assert scene.runs() == before


def test_nothing_is_imported_where_no_launch_is(scene: Gated) -> None:
    text = "import sys; print(*sorted(sys.modules))"
    script = scene.file("job/names.py", text)
    within = [set(scene.launch(*words).out.split()) for words in (("-c", text), (script,))]
    assert scene.lockd("gate", "remove", "site").code == 0
    without = [set(scene.launch(*words).out.split()) for words in (("-c", text), (script,))]
    decoder = {"encodings.utf_8_sig"}  # Python 3.13 on decodes any .pth with that
    assert [one - other - decoder for one, other in zip(within, without, strict=True)] == [set(), {"lockd_gate"}]


def test_no_start_compiles_the_hook(scene: Gated) -> None:
    """Its byte-code is put in with it: many may write none (a read-only environment, a variable in an image)."""
    script = scene.file("job/other.py", "pass\n")
    done = scene.launch("-v", script, env={"PYTHONDONTWRITEBYTECODE": "1"})
    (made,) = scene.site_packages.glob("__pycache__/lockd_gate.*.pyc")
    assert done.code == 0 and f"# {made} matches {scene.hook}" in done.err
    assert scene.verify("--full").code == 0


def test_a_link_in_the_place_of_the_byte_code_is_not_followed(scene: Gated) -> None:
    assert scene.lockd("gate", "remove", "site").code == 0
    victim = scene.root / "victim"
    victim.mkdir()
    shutil.rmtree(scene.site_packages / "__pycache__", ignore_errors=True)
    (scene.site_packages / "__pycache__").symlink_to(victim)
    scene.install()
    assert list(victim.iterdir()) == []


def test_a_base_that_others_may_write_is_not_started(tmp_path: Path) -> None:
    """A user's interpreter of another version stays unstarted by whoever installs for that user."""
    other = "python3.99"
    folder = tmp_path / "venv" / "lib" / other / "site-packages"
    folder.mkdir(parents=True)
    (folder / "lockd_gate.py").write_text("HOOK = {}\n")
    base = tmp_path / "venv" / "bin" / "python"
    base.parent.mkdir()
    base.write_text(f'#!/bin/sh\ntouch {tmp_path}/started\nexec {sys.executable} "$@"\n')
    base.chmod(0o777)
    assert not compiled.put(str(folder / "lockd_gate.py")) and not (tmp_path / "started").exists()
    base.chmod(0o755)
    assert compiled.put(str(folder / "lockd_gate.py")) and (tmp_path / "started").exists()
    assert len(list(folder.glob("__pycache__/lockd_gate.*.pyc"))) == 1


def test_a_hook_with_the_line_of_an_earlier_lockd_is_of_another_version(scene: Gated) -> None:
    (scene.site_packages / "lockd-gate.pth").write_text("import lockd_gate\n")
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["python:train"]) and "of another version" in answer.out
    scene.install()
    assert scene.verify().code == 0


# -- what belongs to a launch

ELASTIC = """import os, subprocess, sys
if sys.argv[1:] == ["rank"]:
    print("rank")
else:
    for _ in range(3):
        subprocess.run([sys.executable, __file__, "rank"], check=True)
        open(os.environ["MODEL"], "w").write("x = 3")
    os.execv(sys.executable, [sys.executable, __file__, "rank"])
"""


def test_ranks_and_restarts_after_drift_pass_without_a_question(scene: Gated) -> None:
    scene.file("job/train.py", ELASTIC)
    done = scene.launch(scene.train, env={"MODEL": str(scene.root / "job" / "model.py")})
    assert (done.code, done.out, done.err) == (0, "rank\n" * 4, "")
    assert len(scene.runs()) == 1
    assert [row["kind"] for row in scene.lockd("log", "--json").document].count("refuse") == 0


WORKERS = """import multiprocessing, os, sys
def work(number):
    open(os.environ["MODEL"], "w").write("x = 4")
    return number
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(pool.map(work, [1, 2]))
"""


def test_spawn_and_forkserver_workers(scene: Gated) -> None:
    scene.file("job/train.py", WORKERS)
    done = scene.launch(scene.train, env={"MODEL": str(scene.root / "job" / "model.py")})
    assert (done.code, done.out, done.err) == (0, "[1, 2]\n" * 2, "")
    assert len(scene.runs()) == 1


def test_a_new_session_inside_a_launch_belongs_to_it(scene: Gated) -> None:
    scene.file("job/train.py", ELASTIC.replace("check=True", "check=True, start_new_session=True"))
    assert scene.launch(scene.train, env={"MODEL": str(scene.root / "job" / "model.py")}).code == 0


def test_lockd_run_before_the_hook_is_one_run(scene: Gated) -> None:
    command = ("run", "--", str(scene.python), str(scene.train))
    assert scene.lockd(*command, env={"RAN": str(scene.root / "ran")}).code == 0
    assert [run["gate"] for run in scene.runs()] == ["run"] and len(scene.ran) == 1


LEAK = """import json, os
json.dump(dict(os.environ), open(os.environ["RAN"], "w"))
"""


def test_a_copied_environment_admits_nobody(scene: Gated) -> None:
    import json

    scene.file("job/train.py", LEAK)
    assert scene.launch(scene.train).code == 0
    copied = json.loads((scene.root / "ran").read_text())
    scene.drift()
    assert scene.launch(scene.train, env=copied).code == 78


def test_a_ticket_of_another_process_admits_nobody(scene: Gated) -> None:
    """Its number was given again: the start time tells."""
    assert scene.launch(scene.train).code == 0
    (folder,) = scene.state.glob("*/launches")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    scene.drift()
    (folder / str(os.getpid())).write_text(f"1 {boot} 1\n")
    assert scene.launch(scene.train).code == 78


def test_a_ticket_where_others_can_write_is_not_believed(scene: Gated) -> None:
    from lockd import lineage

    assert scene.launch(scene.train).code == 0
    (folder,) = scene.state.glob("*/launches")
    known = lineage.identity(os.getpid())
    (folder / str(os.getpid())).write_text(f"{known['start']} {known['boot']} 1\n")
    scene.drift()
    assert scene.launch(scene.train).code == 0  # this test is the launch now
    folder.chmod(0o777)
    assert scene.launch(scene.train).code == 78


# -- verdicts


def test_warn_starts_with_a_warning(tmp_path: Path) -> None:
    scene = gated(tmp_path, 'on_drift = "warn"')
    scene.drift()
    done = scene.launch(scene.train)
    assert done.code == 0 and "lockd: warning" in done.err and "model.py" in done.err
    assert [run["verdict"] for run in scene.runs()] == ["warn"]


def test_an_override_lets_it_start(scene: Gated) -> None:
    scene.drift()
    assert scene.lockd("override", "--for", "1h", "deadline").code == 0
    done = scene.launch(scene.train)
    assert done.code == 0 and "deadline" in done.err and len(scene.ran) == 1


def test_no_lock_and_a_broken_policy_open_nothing(scene: Gated) -> None:
    scene.lock.rename(scene.root / "away.lock")
    done = scene.launch(scene.train)
    assert (done.code, scene.ran) == (125, []) and "no known-good yet" in done.err
    scene.policy.write_text("schema = 1\nname = ")
    done = scene.launch(scene.train)
    assert (done.code, scene.ran) == (125, []) and "not TOML" in done.err
    scene.policy.unlink()
    done = scene.launch(scene.train)
    assert (done.code, scene.ran) == (125, []) and "no such policy" in done.err


def test_on_unknown_warn_starts(tmp_path: Path) -> None:
    scene = gated(tmp_path, 'on_unknown = "warn"')
    scene.lock.unlink()
    done = scene.launch(scene.train)
    assert done.code == 0 and "could not look" in done.err and len(scene.ran) == 1


def test_lockd_s_variables_and_the_folder_change_nothing(scene: Gated) -> None:
    scene.file("lockd.toml", "broken")
    scene.drift()
    env = {"LOCKD_POLICY": "/nowhere", "LOCKD_STATE": str(scene.root / "s"), "LOCKD_RUNTIME": str(scene.root / "r")}
    assert scene.launch(scene.train, env=env).code == 78
    assert not (scene.root / "s").exists() and not (scene.root / "r").exists()


def test_lockd_runs_nothing_of_the_launch_s_variables(tmp_path: Path) -> None:
    scene = gated(tmp_path, 'on_drift = "warn"')
    scene.file("path/sitecustomize.py", "import os; open(os.environ.get('TRACE', '/dev/null'), 'a').write('x')\n")
    trace = scene.root / "trace"
    env = {"PYTHONPATH": str(scene.root / "path"), "TRACE": str(trace), "PYTHONSTARTUP": "x", "PYTHONHOME": ""}
    assert scene.launch(scene.train, env=env).code == 0
    assert trace.read_text() == "x"  # the launch's own, once


# -- comings and goings


def _files(scene: Gated) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"/" for path in scene.site_packages.rglob("*")}


def test_removed_without_a_trace(scene: Gated) -> None:
    scene.launch(scene.train)
    assert scene.lockd("gate", "status", "site").code == 0
    assert scene.lockd("gate", "remove", "site").code == 0
    assert _files(scene) == {}
    scene.drift()
    assert scene.launch(scene.train).code == 0
    assert scene.lockd("gate", "status", "site").code == 1
    assert scene.lockd("gate", "remove", "site").code == 0  # there is nothing to do, and that is well
    scene.heal()
    assert scene.verify().code == 0


def test_a_link_in_the_hook_s_place_leads_nowhere(scene: Gated) -> None:
    """What a link in site-packages points to is never written: root may be the one who installs."""
    assert scene.lockd("gate", "remove", "site", "--env", "train").code == 0
    victims = [scene.root / "victim.py", scene.root / "victim.pth"]
    for victim, name in zip(victims, ("lockd_gate.py", "lockd-gate.pth"), strict=True):
        victim.write_text("precious")
        (scene.site_packages / name).symlink_to(victim)
    assert scene.lockd("gate", "install", "site", "--env", "train").code == 0
    assert [victim.read_text() for victim in victims] == ["precious", "precious"]
    assert not (scene.site_packages / "lockd_gate.py").is_symlink()


def test_the_hook_is_no_drift_and_its_loss_is(scene: Gated) -> None:
    scene.launch(scene.train)  # byte-code lies beside it now
    assert scene.verify().code == 0 and scene.verify("--full").code == 0
    folder = scene.site_packages
    shutil.rmtree(folder)  # as `uv venv --clear` does
    folder.mkdir()
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["python:train"])
    assert "site hook is gone" in answer.out and "gate install site" in answer.out
    scene.install()
    assert scene.verify().code == 0


def test_a_lost_hook_is_never_known_good(scene: Gated) -> None:
    """An environment made anew is accepted once its hook is back, or given up."""
    folder = scene.site_packages
    shutil.rmtree(folder)
    folder.mkdir()
    answer = scene.accept()
    assert answer.code == 1 and "site hook is gone" in answer.err
    scene.install()
    assert scene.accept().code == 0 and scene.verify().code == 0
    shutil.rmtree(folder)
    folder.mkdir()
    assert scene.lockd("gate", "remove", "site").code == 0
    assert scene.accept().code == 0 and scene.verify().code == 0
    scene.install()
    assert scene.verify().code == 0


def test_a_changed_hook_is_drift(scene: Gated) -> None:
    with open(scene.hook, "a") as file:
        file.write("HOOK = {}\n")
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["python:train"]) and "not as it was installed" in answer.out
    assert "not as it was" in scene.lockd("gate", "status", "site").err


def test_a_hook_of_another_version(scene: Gated) -> None:
    """Known while the state remembers it; without that, told as what it is."""
    text = scene.hook.read_text().rpartition("# seal: ")[0]
    scene.hook.write_text(hook.sealed(text + "# another line of code\n"))
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["python:train"]) and "of another version" in answer.out
    scene.install()
    assert scene.verify().code == 0


def test_start_up_code_by_the_hook_s_name_is_drift(scene: Gated) -> None:
    scene.lockd("gate", "remove", "site")
    (scene.site_packages / "lockd-gate.pth").write_text("import lockd_gate\n")
    scene.hook.write_text("print('evil')\n")
    answer = scene.verify()
    assert (answer.code, answer.facts) == (1, ["python:train"]) and "lockd_gate.py" in answer.out


def test_a_guest_without_the_state_knows_the_hook(scene: Gated) -> None:
    assert scene.verify(env={"LOCKD_STATE": str(scene.root / "other state")}).code == 0


def test_two_policies_share_a_hook(scene: Gated) -> None:
    other = scene.root / "policy" / "other.toml"
    other.write_text(scene.policy.read_text().replace('"ct"', '"other"').replace("model.py", "second.py"))
    scene.file("job/second.py")
    env = {"LOCKD_POLICY": str(other)}
    assert scene.accept(env=env).code == 0
    assert scene.lockd("gate", "install", "site", env=env).code == 0
    assert scene.launch(scene.train).code == 0
    scene.file("job/second.py", "y = 2\n")
    assert scene.launch(scene.train).code == 78
    assert scene.lockd("gate", "remove", "site", env=env).code == 0
    assert scene.launch(scene.train).code == 0
    assert scene.verify().code == 0 and scene.lockd("gate", "status", "site").code == 0
    scene.drift()
    assert scene.launch(scene.train).code == 78


def test_a_policy_that_changed_is_told(scene: Gated) -> None:
    write_policy(scene, 'on_unknown = "warn"')
    answer = scene.lockd("gate", "status", "site", "--json")
    assert answer.code == 1 and "on_unknown" in answer.document["trouble"]
    scene.install()
    assert scene.lockd("gate", "status", "site").code == 0


def test_accept_says_that_the_hook_is_stale(scene: Gated) -> None:
    """The policy that is accepted is not the one by which the hook refuses."""
    assert "hook" not in scene.accept().err
    write_policy(scene, 'on_unknown = "warn"')
    told = "lockd: the site hook of train: the policy has changed since: on_unknown"
    assert "hook" not in scene.lockd("accept", "--dry-run").err
    answer = scene.accept("--json")
    assert answer.code == 0 and answer.document["recorded"] is True and answer.document["generation"] > 1
    assert told in answer.err and "lockd gate install site --env train" in answer.err
    scene.install()
    assert "hook" not in scene.accept().err


def test_what_can_have_no_hook(scene: Gated) -> None:
    told = {"/usr": "virtualenv", f"{scene.root}/gone": "is not there", f"{scene.root}/venv": "names no launch"}
    for path, error in told.items():
        launch = "" if "launch" in error else f'[launch]\nscripts = ["{scene.train}"]\n'
        scene.write_policy(f'{launch}[[python]]\nname = "train"\npath = "{path}"\n')
        answer = scene.lockd("gate", "install", "site", "--env", "train")
        assert answer.code in (2, 3) and error in answer.err and "Traceback" not in answer.err
    assert "names no environment" in scene.lockd("gate", "install", "site", "--env", "x").err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into any folder")
def test_a_read_only_environment(scene: Gated) -> None:
    scene.lockd("gate", "remove", "site")
    scene.site_packages.chmod(0o555)
    answer = scene.lockd("gate", "install", "site")
    scene.site_packages.chmod(0o755)
    assert answer.code == 3 and "could not be written" in answer.err and _files(scene) == {}


def test_an_old_python_finds_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockd.gates.hook.gate import command_line

    orig = command_line()
    monkeypatch.delattr(sys, "orig_argv")
    assert command_line() == orig


@pytest.mark.parametrize("line", ["python", "python -", "python -c x y", "python -ic x", "python -W", "python -m"])
def test_command_lines_that_start_no_file(line: str) -> None:
    assert which.started(line.split()) is None


def test_an_interpreter_without_site_is_not_gated(shared: Gated) -> None:
    """Documented: -S leaves out every .pth."""
    shared.drift()
    done = shared.launch("-S", shared.train)
    shared.heal()
    assert (done.code, done.err) == (0, "")


def test_another_python_with_the_same_script_has_no_hook(shared: Gated) -> None:
    """Documented: the daemon sees such a launch, the hook can't."""
    shared.drift()
    done = subprocess.run([sys.executable, "-I", str(shared.train)], env=shared.variables())
    shared.heal()
    assert done.returncode == 0


def test_a_moved_environment_still_asks(scene: Gated) -> None:
    """The hook moves with it; the policy says where the environment has to be."""
    scene.python.parents[1].rename(scene.root / "moved")
    argv = [str(scene.root / "moved" / "bin" / "python"), str(scene.train)]
    done = subprocess.run(argv, env=scene.variables(), capture_output=True, text=True)
    assert done.returncode == 78 and "lockd: refused" in done.stderr and scene.ran == []


def test_a_state_that_takes_no_record_is_a_fault(scene: Gated) -> None:
    """As on a full disk: `on_fault` decides, and says why."""
    (folder,) = scene.state.iterdir()
    (folder / "store.sqlite").unlink()
    (folder / "store.sqlite").mkdir()
    done = scene.launch(scene.train)
    assert done.code == 0 and "lockd: warning" in done.err and "on_fault" in done.err and len(scene.ran) == 1


def test_doctor_tells_of_a_hook_that_is_due(scene: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    def hooks() -> list[dict[str, str]]:
        return [one for one in scene.lockd("doctor", "--json").document["checks"] if one["name"] == "hook"]

    assert hooks() == []
    scene.policy.write_text(scene.policy.read_text().replace("[launch]", '[launch]\non_fault = "block"'))
    (told,) = hooks()
    assert "changed since: on_fault" in told["what"] and told["hint"] == "lockd gate install site --env train"
    scene.install()
    assert hooks() == []
    template = hook.template()
    with monkeypatch.context() as patch:  # as an earlier lockd would have written it
        patch.setattr(hook, "template", lambda: template.replace("DEPTH = 128", "DEPTH = 127"))
        place = site.Place("train", str(scene.root / "venv"), str(scene.site_packages))
        content = site.content_of(place)
        assert content is not None
        site.put(place, site.render(content))
        digest = hook.read(str(scene.site_packages))
    (record,) = scene.state.glob("*/hooks.json")
    assert digest is not None
    record.write_text(json.dumps({"train": digest.digest}))
    (told,) = hooks()
    assert "another version of lockd" in told["what"]
    assert scene.launch(scene.train).code == 0  # it asks all the same
    scene.hook.unlink()
    (told,) = hooks()
    assert "not as it was installed" in told["what"] or "is gone" in told["what"]


# -- every gate


def test_status_without_a_kind_tells_of_every_gate(scene: Gated) -> None:
    """Exit 0 while the hook serves this policy, 1 once nothing gates it."""
    answer = scene.lockd("gate", "status", "--json")
    (gate,) = answer.document["gates"]
    assert (answer.code, gate["kind"], gate["installed"], gate["trouble"]) == (0, "site", True, None)
    text = scene.lockd("gate", "status")
    assert text.code == 0 and text.out == scene.lockd("gate", "status", "site").out
    assert scene.lockd("gate", "remove", "site").code == 0
    without = scene.lockd("gate", "status")
    assert without.code == 1 and "no gate: lockd gate install puts one in" in without.out


def test_status_without_a_kind_fails_where_a_hook_is_not_as_it_should_be(scene: Gated) -> None:
    (module,) = (scene.root / "venv").rglob("lockd_gate.py")
    module.write_text(module.read_text() + "# edited\n")
    answer = scene.lockd("gate", "status")
    assert answer.code == 1 and answer.err.startswith("lockd: "), answer.out + answer.err
