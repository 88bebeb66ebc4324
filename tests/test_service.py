"""The units: what is written, what is never touched; systemd's own opinion of them where it is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lockd import service
from tests.scene import Scene, pinned_file

UNITS = Path(__file__).parents[1] / "units"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return pinned_file(tmp_path)[0]


def install(scene: Scene, *options: str) -> tuple[int, Path, str]:
    root = scene.root / "machine"
    answer = scene.lockd("service", "install", "--root", str(root), *options)
    return answer.code, root / "etc/systemd/system", answer.err


def test_the_unit_starts_this_lockd_with_absolute_paths(scene: Scene) -> None:
    code, folder, _ = install(scene)
    assert code == 0
    (line,) = [line for line in (folder / "lockd.service").read_text().splitlines() if line.startswith("ExecStart=")]
    command = line.removeprefix("ExecStart=").split()
    assert command[0].startswith("/") and Path(command[0]).exists()
    assert command[-3:] == ["--policy", str(scene.policy), "daemon"]
    assert "CAP_SYS_PTRACE" in (folder / "lockd.service.d/attribution.conf").read_text()


def test_trust_unmapped_is_baked_in(scene: Scene) -> None:
    _, folder, _ = install(scene, "--trust-unmapped")
    assert f"{scene.policy} daemon --trust-unmapped\n" in (folder / "lockd.service").read_text()


def test_the_socket_lies_where_clients_look(scene: Scene) -> None:
    from lockd.protocol import folder as place

    code, folder, _ = install(scene, "--socket")
    assert code == 0
    listen = f"ListenStream={place('/run/lockd', str(scene.policy))}/socket"
    assert listen in (folder / "lockd.socket").read_text().splitlines()


def test_remove_leaves_no_trace_and_status_says_so(scene: Scene) -> None:
    _, folder, _ = install(scene, "--socket")
    root = str(scene.root / "machine")
    assert scene.lockd("service", "status", "--root", root).code == 0
    assert scene.lockd("service", "remove", "--root", root).code == 0
    assert list(folder.iterdir()) == []
    assert scene.lockd("service", "status", "--root", root).code == 1
    assert scene.lockd("service", "remove", "--root", root).code == 0


def test_what_lockd_did_not_write_is_neither_overwritten_nor_removed(scene: Scene) -> None:
    folder = scene.root / "machine/etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / "lockd.service").write_text("[Service]\nExecStart=/bin/true\n")
    code, _, err = install(scene)
    assert code == 1 and "in the way" in err
    scene.lockd("service", "remove", "--root", str(scene.root / "machine"))
    assert (folder / "lockd.service").read_text() == "[Service]\nExecStart=/bin/true\n"


def test_a_bad_policy_is_not_installed(scene: Scene) -> None:
    scene.write_policy("nonsense = 1\n")
    assert install(scene)[0] == 2
    assert not (scene.root / "machine").exists()


@pytest.mark.parametrize("name", ["../x", "a b", "-x", "%i"])
def test_an_odd_name_is_refused(scene: Scene, name: str) -> None:
    assert scene.lockd("service", "remove", f"--name={name}", "--root", str(scene.root)).code == 2


@pytest.mark.parametrize(("where", "private"), [("/tmp/job", False), ("/var/tmp/x", False), ("/srv/job", True)])
def test_hardening_hides_no_pinned_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, private: bool
) -> None:
    from lockd import policy

    loaded = policy.parse(f'schema = 1\nname = "ct"\n[[file]]\npath = "{where}/model.py"\n', "/etc/lockd/ct.toml")
    monkeypatch.setattr(service, "in_container", lambda: False)
    monkeypatch.setattr("sys.executable", "/opt/lockd/bin/python")
    monkeypatch.setattr(service, "__file__", "/opt/lockd/lib/lockd/service.py")
    monkeypatch.setattr(service, "_source", lambda name: (UNITS / name).read_text())
    text = service._hardening(loaded)
    assert ("PrivateTmp=yes" in text) is private and "ProtectHome" not in text
    monkeypatch.setattr(service, "in_container", lambda: True)
    assert service._hardening(loaded) == ""


def test_a_path_is_one_word_of_a_unit() -> None:
    assert service._word("/etc/a b%c.toml") == '"/etc/a b%%c.toml"'


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["lockd.service", "lockd@.service"])
def test_systemd_takes_the_units(tmp_path: Path, name: str) -> None:
    unit = tmp_path / name.replace("@", "@ct200")
    unit.write_text((UNITS / name).read_text().replace("/opt/lockd/bin/lockd", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if tmp_path.name in line or unit.name in line]
    assert complaints == []
