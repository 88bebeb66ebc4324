"""A glance ahead of a slow look: what it may tell, and that the look says the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from lockd.daemon.gather import CALM, HELD, QUIET, Gatherer
from lockd.daemon.glance import Glancer
from lockd.facts import Fact, Facts
from lockd.look import Sight
from lockd.probes.python import contents
from lockd.watch.hints import Hint
from tests.daemons import Daemon, edit, until
from tests.scene import ROOT, Scene
from tests.wheels import Wheel, build_venv, install

GOOD = "x = 1\n"


@pytest.fixture
def seen(tmp_path: Path) -> tuple[Sight, Path]:
    """The sight of one package of 30 files."""
    manifest = {}
    for number in range(30):
        path = tmp_path / "site" / "p" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GOOD)
        manifest[f"p/m{number}.py"] = sha256(GOOD.encode()).hexdigest()
    manifest["p/gone.py"] = contents.MISSING
    told = {"root": str(tmp_path / "site")}
    fact = Fact("package", "train/p", {"version": "1", "content": contents.digest(manifest)}, told)
    return Sight(Facts([fact]), {}, lambda: {fact.name: manifest}), tmp_path / "site" / "p"


def content(sight: Sight) -> object:
    fact = sight.facts["package:train/p"]
    assert isinstance(fact, Fact)
    return fact.attributes["content"]


def changed(path: Path, kind: str = "changed") -> Hint:
    return Hint(str(path), kind)  # type: ignore[arg-type]


def test_a_glance_gives_the_content_that_a_look_would_give(seen: tuple[Sight, Path]) -> None:
    sight, folder = seen
    glancer, words = Glancer(), dict(sight.manifests()["package:train/p"])
    for number, text in enumerate(("x = 2\n", "x = 3\n", GOOD)):
        path = folder / f"m{7 + number % 2}.py"
        path.write_text(text)
        path.chmod(0o755 if number == 1 else 0o644)
        words[f"p/{path.name}"] = sha256(text.encode()).hexdigest() + ("+x" if number == 1 else "")
        glance = glancer(sight, [changed(path)])
        assert glance is not None and glance.complete
        assert content(glance.sight) == contents.digest(words)
        assert glance.sight.manifests()["package:train/p"] == words
        sight = glance.sight  # as the look after it has it


def test_the_next_glance_starts_from_the_last_look_not_from_the_last_glance(seen: tuple[Sight, Path]) -> None:
    sight, folder = seen
    glancer = Glancer()
    (folder / "m1.py").write_text("x = 2\n")
    assert glancer(sight, [changed(folder / "m1.py")]) is not None
    (folder / "m1.py").write_text(GOOD)
    glance = glancer(sight, [changed(folder / "m1.py")])
    assert glance is not None and content(glance.sight) == content(sight)


def test_what_is_more_than_bytes_needs_a_look(seen: tuple[Sight, Path]) -> None:
    sight, folder = seen
    path = folder / "m1.py"
    path.write_text("x = 2\n")
    for others in ([changed(folder / "new.py", "created")], [changed(path, "moved")], [changed(folder / "gone.py")]):
        glance = Glancer()(sight, [changed(path), *others])
        assert glance is not None and not glance.complete
    path.unlink()
    assert Glancer()(sight, [changed(path, "removed")]) is None
    os.symlink("m2.py", path)
    assert Glancer()(sight, [changed(path)]) is None
    assert Glancer()(sight, [changed(folder / f"m{number}.py") for number in range(2, 60)]) is None


def test_a_manifest_that_is_not_the_facts_is_not_believed(seen: tuple[Sight, Path]) -> None:
    sight, folder = seen
    manifest = {**sight.manifests()["package:train/p"], "p/m3.py": "0" * 64}
    torn = Sight(sight.facts, {}, lambda: {"package:train/p": manifest})
    (folder / "m1.py").write_text("x = 2\n")
    assert Glancer()(torn, [changed(folder / "m1.py")]) is None


def test_what_was_glanced_at_is_looked_at_once_it_is_calm_and_in_any_case_after_the_bound() -> None:
    now = [100.0]
    gatherer = Gatherer(now=lambda: now[0])
    began = now[0]
    looked = 0.0
    while not looked:  # an edit every CALM / 2 seconds: never calm
        gatherer.put(Hint(f"/{now[0]}", "changed"))
        now[0] += QUIET
        assert gatherer.due() == pytest.approx(0)
        burst = gatherer.take()
        assert gatherer.due() is None
        if burst.due:
            looked = now[0]
        else:
            gatherer.hold(burst)
            assert gatherer.waiting and gatherer.due() == pytest.approx(
                min(CALM - QUIET, began + QUIET + HELD - now[0])
            )
        now[0] += CALM / 2 - QUIET
    assert HELD <= looked - began <= HELD + CALM and len(burst.hints) > 100
    gatherer.put(Hint("/a", "changed"))
    gatherer.hold(gatherer.take())
    now[0] += CALM
    assert gatherer.due() == 0 and gatherer.take().due and not gatherer.waiting


class Slow(Daemon):
    """A daemon that takes each look for a slow one, so that a glance comes first."""

    def command(self) -> Sequence[str]:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from lockd.daemon import decide; decide.SLOW = 0.0\n"
        return sys.executable, "-c", code + "from lockd.cli import main; sys.exit(main(sys.argv[1:]))"


def test_a_glance_and_the_look_after_it_agree(tmp_path: Path) -> None:
    env = build_venv(tmp_path / "venv")
    install(env, Wheel("torch", "2.11.0", {"torch/__init__.py": GOOD, "torch/a.py": GOOD}), compiled=False)
    scene = Scene(tmp_path)
    scene.write_policy(f'[[python]]\nname = "train"\npath = "{env.prefix}"\n')
    assert scene.accept().code == 0
    path = env.site / "torch" / "a.py"

    def marks() -> list[str]:
        rows = scene.lockd("log", "--json", "--reverse", "--kind", "drift", "--kind", "heal").document
        return [row["kind"] for row in rows if row["fact"] == "package:train/torch"]

    with Slow(scene) as daemon:
        daemon.ready()
        good = daemon.standing()["environment"]
        edit(path, "x = 2\n")
        until(lambda: daemon.standing()["environment"] != good, "the glance")
        early = daemon.standing()
        (finding,) = daemon.status()["findings"]  # whoever asks for it waits for the look
        now = daemon.standing()
        assert early["verdict"] == now["verdict"] == "block" and early["environment"] == now["environment"]
        assert finding["fact"] == "package:train/torch" and finding["files"]["changed"] == 1
        edit(path, GOOD)
        daemon.wait_for("ok")
        until(lambda: marks() == ["drift", "heal"], "the mark of the heal")  # else both edits are one burst
        edit(path, "x = 3\n")
        daemon.wait_for("block")
        path.with_name("n.py").write_text("y")
        until(lambda: len(daemon.status()["findings"]) == 2, "the file that nobody owns")
        edit(path, GOOD)
        path.with_name("n.py").unlink()
        daemon.wait_for("ok")
        assert daemon.stop() == 0
    assert marks() == ["drift", "heal", "drift", "heal"]
