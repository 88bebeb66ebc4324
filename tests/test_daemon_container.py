"""The service in real containers that boot systemd: ready, watched, restarted, named in the journal, stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.container import Container, Kind, container
from tests.daemons import until
from tests.scene import ROOT
from tests.wheels import UV, Wheel

__all__ = ["container"]
pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="the container's Python takes compiled packages of 3.11"
    ),
]

POLICY = "/etc/lockd/policy.toml"
TEXT = """schema = 1
name = "ct200"
[[python]]
name = "train"
path = "/root/venv"
[[file]]
path = "/root/model.py"
"""
LOCKD = ("/opt/lockd/bin/lockd", "--policy", POLICY)
_PACKAGES: tuple[str, ...] = (
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
    "packaging",
)
_PACKAGES += ("structlog", "watchdog")


def build(number: int) -> Wheel:
    """A build of torch, as far as lockd reads one; the number of files makes its install a burst."""
    files = {f"torch/part{index}.py": f"build = {number}\n" for index in range(400)}
    version = f"__version__ = '2.11.0+cu12{number}'\ncuda = '12.{number}'\n"
    return Wheel("torch", "2.11.0", {**files, "torch/__init__.py": "", "torch/version.py": version})


@pytest.fixture(scope="module", params=["privileged", "unprivileged"])
def box(request: pytest.FixtureRequest, container: Callable[[Kind], Container], tmp_path_factory: Any) -> Container:
    """A container with lockd in a venv of its own, a training venv made by uv, and everything accepted."""
    assert UV is not None
    made = container(request.param)
    made.run("python3", "-m", "venv", "--without-pip", "/opt/lockd")
    site = next((made.path / "opt/lockd/lib").glob("python3*/site-packages")).relative_to(made.path)
    for name in _PACKAGES:
        spec = find_spec(name)
        assert spec and spec.origin
        source = Path(spec.origin)
        source = source.parent if source.name == "__init__.py" else source
        made.push(source, f"/{site}/{source.name}")
    library = find_spec(
        "systemd"
    )  # one container speaks to the journal through systemd-python, the other by lockd itself
    if library and library.origin and made.kind == "privileged":
        made.push(Path(library.origin).parent, f"/{site}/systemd")
    made.push(ROOT / "lockd", f"/{site}/lockd")
    made.push(ROOT / "units", f"/{site}/lockd/_units")
    wheels = tmp_path_factory.mktemp("wheels")
    script = wheels / "lockd"
    script.write_text("#!/opt/lockd/bin/python -I\nimport sys\nfrom lockd.__main__ import main\nsys.exit(main())\n")
    script.chmod(0o755)
    made.push(script, "/opt/lockd/bin/lockd")
    made.push(Path(UV), "/usr/local/bin/uv")
    for number in (8, 9):
        made.push(build(number).write(wheels / str(number)), f"/root/wheels/{number}/torch-2.11.0-py3-none-any.whl")
    made.run("python3", "-m", "venv", "--without-pip", "/root/venv")
    install(made, 8)
    write(made, "/root/model.py", "x = 1\n")
    write(made, POLICY, TEXT)
    made.run(*LOCKD, "accept", "-m", "good", "--yes")
    made.run(*LOCKD, "service", "install", "--now")
    return made


def install(made: Container, number: int) -> None:
    wheel = f"/root/wheels/{number}/torch-2.11.0-py3-none-any.whl"
    options = ("--offline", "--no-cache", "--reinstall", "--python", "/root/venv/bin/python")
    made.run("/usr/local/bin/uv", "pip", "install", *options, wheel)


def write(made: Container, path: str, text: str) -> None:
    made.run("sh", "-c", f'mkdir -p $(dirname {path}); printf %s "$1" > {path}; sleep 0.1', "sh", text)


def status(made: Container) -> dict[str, Any]:
    return dict(json.loads(made.run(*LOCKD, "status", "--json").stdout))


def pid(made: Container) -> int:
    return int(made.run("systemctl", "show", "lockd", "-p", "MainPID", "--value").stdout)


def journal(made: Container, *match: str) -> list[dict[str, Any]]:
    out = made.run("journalctl", "-u", "lockd", "-o", "json", "--all", *match).stdout
    return [json.loads(line) for line in out.splitlines()]


def events(made: Container, kind: str) -> list[dict[str, Any]]:
    return list(json.loads(made.run(*LOCKD, "log", "--json", "--reverse", "--kind", kind).stdout))


def test_it_is_ready_when_systemd_says_so_and_answers(box: Container) -> None:
    assert box.run("systemctl", "is-active", "lockd").stdout.strip() == "active"
    told = status(box)
    assert told["verdict"] == "ok" and told["daemon"]["pid"] == pid(box)
    modes = {one["mode"] for one in told["watch"].values()}
    assert modes == {"fanotify" if box.kind == "privileged" else "inotify"}, told["watch"]
    assert json.loads(box.run(*LOCKD, "verify", "--json").stdout)["daemon"] is True
    assert journal(box, "LOCKD_EVENT=started")


def test_the_journal_is_reached_through_systemd_python(box: Container) -> None:
    if box.kind != "privileged" or find_spec("systemd") is None:
        pytest.skip("no systemd-python in this container: lockd speaks the two protocols itself, as the others test")
    made = box.run("/opt/lockd/bin/python", "-I", "-c", "import systemd.journal as j; print(j.__file__)").stdout
    assert made.startswith("/opt/lockd/")
    maps = box.run("cat", f"/proc/{pid(box)}/maps").stdout
    assert "/systemd/_journal" in maps and "/systemd/_daemon" in maps  # the daemon itself has loaded them
    entry = journal(box, "LOCKD_EVENT=started")[-1]
    assert entry["CODE_FILE"].endswith("lockd/log.py")  # which systemd-python adds, and lockd's own way does not


def test_another_build_by_uv_is_one_drift_with_its_writer(box: Container) -> None:
    before = len(events(box, "drift"))
    install(box, 9)
    answer = json.loads(box.run(*LOCKD, "verify", "--json", check=False).stdout)
    (finding,) = answer["findings"]
    assert finding["fact"] == "package:train/torch" and finding["attributes"]["cuda"] == ["12.8", "12.9"]
    time.sleep(2)
    (drift,) = events(box, "drift")[before:]
    entry = journal(box, "LOCKD_EVENT=drift", "LOCKD_FACT=package:train/torch")[-1]
    assert len(entry["MESSAGE_ID"]) == 32 and entry["LOCKD_VERDICT"] == "block"
    assert entry["LOCKD_ENVIRONMENT"].startswith("env1:")
    for by in (finding["by"], drift["by"], json.loads(entry["LOCKD_BY"])):
        if box.kind == "privileged":
            assert by["exe"].endswith("/uv") and by["cmdline"][1:3] == ["pip", "install"], by
        else:
            assert by["confidence"] == "not observed" and "CAP_SYS_ADMIN" in by["reason"], by
    install(box, 8)
    until(lambda: status(box)["verdict"] == "ok", "the old build to be good again")


def test_an_edit_on_the_host_is_seen(box: Container) -> None:
    path = box.path / "root/model.py"
    path.write_text("edited on the host\n")
    until(lambda: status(box)["verdict"] == "block", "the edit to be seen")
    (finding,) = status(box)["findings"]
    assert finding["by"]["confidence"] == "not observed" and finding["by"]["reason"]
    path.write_text("x = 1\n")
    until(lambda: status(box)["verdict"] == "ok", "the edit to be undone")


def test_killed_it_comes_back_and_knows_what_happened_meanwhile(box: Container) -> None:
    first = pid(box)
    box.run("sh", "-c", f"kill -9 {first}; echo 'x = 2' > /root/model.py")
    until(lambda: pid(box) not in (0, first), "another one")
    until(lambda: status(box)["daemon"], "it to answer")
    assert status(box)["verdict"] == "block"
    write(box, "/root/model.py", "x = 1\n")
    assert status(box)["verdict"] == "ok"


def test_a_bad_policy_is_said_and_reload_takes_the_good_one(box: Container) -> None:
    first = pid(box)
    write(box, POLICY, TEXT + "nonsense = 1\n")
    until(lambda: journal(box, "LOCKD_EVENT=policy_trouble"), "the journal to say so")
    told = status(box)
    assert told["verdict"] == "unknown" and "nonsense" in told["trouble"]
    write(box, POLICY, TEXT)
    box.run("systemctl", "reload", "lockd")
    until(lambda: status(box)["verdict"] == "ok", "the good one to be taken up")
    assert pid(box) == first


def test_a_stopped_daemon_is_ended_by_the_watchdog(box: Container) -> None:
    write(box, "/etc/systemd/system/lockd.service.d/short.conf", "[Service]\nWatchdogSec=2s\n")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "restart", "lockd")
    first = pid(box)
    time.sleep(3)
    assert pid(box) == first and status(box)["verdict"] == "ok"  # petted while it makes progress
    box.run("kill", "-STOP", str(first))
    until(lambda: pid(box) not in (0, first), "the watchdog to end it")
    until(lambda: status(box)["daemon"], "the next one to answer")
    box.run("rm", "/etc/systemd/system/lockd.service.d/short.conf")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "restart", "lockd")


def test_the_first_question_starts_it(box: Container) -> None:
    box.run("systemctl", "stop", "lockd")
    box.run(*LOCKD, "service", "install", "--socket", "--now")
    box.run("systemctl", "stop", "lockd")
    assert box.run("systemctl", "is-active", "lockd.socket").stdout.strip() == "active"
    assert json.loads(box.run(*LOCKD, "verify", "--json").stdout)["verdict"] == "ok"
    until(lambda: box.run("systemctl", "is-active", "lockd", check=False).stdout.strip() == "active", "it to start")
    until(lambda: status(box)["daemon"], "it to answer")


def test_it_stops_in_time_and_remove_leaves_nothing(box: Container) -> None:
    box.run("systemctl", "disable", "--now", "lockd.socket")
    began = time.monotonic()
    box.run("systemctl", "stop", "lockd")
    assert time.monotonic() - began < 2
    result = box.run("systemctl", "show", "lockd", "-p", "Result", "--value").stdout.strip()
    assert result == "success"
    assert "daemon" not in json.loads(box.run(*LOCKD, "verify", "--json").stdout)
    box.reboot()
    until(lambda: status(box)["daemon"], "it to come with the boot")
    assert status(box)["verdict"] == "ok"
    box.run(*LOCKD, "service", "remove")
    assert box.run("systemctl", "is-active", "lockd", check=False).stdout.strip() != "active"
    assert not list((box.path / "etc/systemd/system").glob("lockd*"))
