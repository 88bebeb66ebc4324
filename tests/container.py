"""A real LXC container that boots systemd, as a Proxmox host would run it: the stand-in for the training container.

`container("privileged")` or `container("unprivileged")` gives a `Container`: `run` is `pct exec`, `path` is its root
folder as the host sees it, `push` is `pct push`. Root only; needs Debian's lxc, mmdebstrap and uidmap, and once a
Debian mirror. The root file system is built once, kept under $LOCKD_TESTBED (/var/tmp/lockd-testbed). No network.
What is missing here skips, with the reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

Kind = Literal["privileged", "unprivileged"]
BASE = Path(os.environ.get("LOCKD_TESTBED", "/var/tmp/lockd-testbed"))
RELEASE = "bookworm"
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,procps,ca-certificates,vim-tiny"
FIRST_ID = 100000  # the host's uid that is root in an unprivileged container
_TOOLS = ("lxc-start", "lxc-attach", "lxc-stop", "lxc-usernsexec", "mmdebstrap", "newuidmap", "unshare", "tar")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# A private mount namespace with a pure cgroup2 tree and a subuid range for root, as on a Proxmox 8 host.
_AS_ON_PROXMOX = """
umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
mount --bind "$0" /etc/subuid && mount --bind "$0" /etc/subgid && exec "$@"
"""


@dataclass(frozen=True)
class Container:
    """One running container."""

    name: str
    kind: Kind

    @property
    def folder(self) -> Path:
        return BASE / "lxc" / self.name

    @property
    def path(self) -> Path:
        """Its root folder, as the host sees it."""
        return self.folder / "rootfs"

    @property
    def root_id(self) -> int:
        """The host's uid and gid of the container's root."""
        return FIRST_ID if self.kind == "unprivileged" else 0

    def attach(self, *command: str, **env: str) -> list[str]:
        """The host's argv that runs a command inside, with a clean environment, as `pct exec` does."""
        variables = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"} | env
        words = [word for name, value in variables.items() for word in ("-v", f"{name}={value}")]
        return ["lxc-attach", "-P", str(BASE / "lxc"), "-n", self.name, "--clear-env", *words, "--", *command]

    def run(
        self, *command: str, check: bool = True, timeout: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait for it."""
        done = subprocess.run(
            self.attach(*command, **env), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
        assert not check or done.returncode == 0, (
            f"{command} in {self.name}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def push(self, source: Path, target: str) -> Path:
        """Copy a file or a folder in from the host, owned by the container's root; gives its path on the host."""
        there = self.path / target.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-rT", "--preserve=mode,timestamps", str(source), str(there)], check=True)
        subprocess.run(["chown", "-R", f"{self.root_id}:{self.root_id}", str(there)], check=True)
        return there

    def start(self) -> None:
        """Boot, and wait until systemd is up."""
        _as_on_proxmox("lxc-start", "-P", str(BASE / "lxc"), "-n", self.name)
        end = time.monotonic() + 60
        while self.run("systemctl", "is-system-running", check=False).stdout.strip() not in ("running", "degraded"):
            assert time.monotonic() < end, f"{self.name} did not boot"
            time.sleep(0.1)

    def stop(self) -> None:
        """Pull the plug."""
        subprocess.run(["lxc-stop", "-k", "-P", str(BASE / "lxc"), "-n", self.name], capture_output=True)

    def reboot(self) -> None:
        """Stop and boot again: what does not survive a boot is gone."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """Stop it and remove all that it was."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def unavailable() -> str:
    """Why there can be no container here, "" if there can."""
    if os.geteuid() != 0:
        return "containers: root only"
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    return f"containers: no {', '.join(missing)} (apt-get install lxc mmdebstrap uidmap)" if missing else ""


def make(kind: Kind) -> Container:
    """A new container, booted. Skips the test where there can be none."""
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    archive = _archive()
    made = Container(f"lockd-{uuid.uuid4().hex[:8]}", kind)
    try:
        _unpack(made, archive)
        _configure(made)
        made.start()
    except BaseException:
        made.destroy()
        raise
    return made


def _archive() -> Path:
    """The root file system, built by the first who asks."""
    BASE.mkdir(parents=True, exist_ok=True)
    archive = BASE / f"{RELEASE}.tar"
    with open(BASE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            unfinished = archive.with_suffix(".unfinished.tar")
            command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(unfinished)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"containers: mmdebstrap could not build Debian {RELEASE}: {done.stderr.strip()[-300:]}")
            unfinished.rename(archive)
    return archive


def _unpack(made: Container, archive: Path) -> None:
    made.path.mkdir(parents=True)
    for folder in (BASE, BASE / "lxc", made.folder, made.path):
        folder.chmod(0o755)
    tar = ("tar", "-C", str(made.path), "--numeric-owner", "--exclude=./dev/*", "-xpf", str(archive))
    if made.kind == "unprivileged":
        os.chown(made.path, FIRST_ID, FIRST_ID)
        ids = f"0:{FIRST_ID}:65536"
        _as_on_proxmox("lxc-usernsexec", "-m", f"u:{ids}", "-m", f"g:{ids}", "--", *tar)
    else:
        subprocess.run(tar, check=True)


def _configure(made: Container) -> None:
    lines = ["lxc.include = /usr/share/lxc/config/common.conf"]
    if made.kind == "unprivileged":
        lines.append("lxc.include = /usr/share/lxc/config/userns.conf")
        lines += [f"lxc.idmap = {letter} 0 {FIRST_ID} 65536" for letter in "ug"]
    lines += [f"lxc.arch = {os.uname().machine}", f"lxc.uts.name = {made.name}", f"lxc.rootfs.path = dir:{made.path}"]
    lines += ["lxc.net.0.type = empty", "lxc.apparmor.profile = unconfined", "lxc.init.cmd = /sbin/init"]
    lines += ["lxc.mount.auto = proc:mixed sys:mixed cgroup:rw:force"]
    (made.folder / "config").write_text("\n".join(lines) + "\n")
    etc = made.path / "etc"
    (etc / "hostname").write_text(made.name + "\n")
    (etc / "machine-id").write_text("")
    mask = etc / "systemd" / "system" / "sys-kernel-debug.mount"
    mask.unlink(missing_ok=True)
    mask.symlink_to("/dev/null")
    for path in (etc / "hostname", etc / "machine-id", mask):
        os.lchown(path, made.root_id, made.root_id)


def _as_on_proxmox(*command: str) -> None:
    ids = BASE / "subid"
    ids.write_text(f"root:{FIRST_ID}:65536\n")
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", _AS_ON_PROXMOX, str(ids), *command]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command[0]}: {done.stderr}"


@pytest.fixture(scope="module")
def container() -> Iterator[Callable[[Kind], Container]]:
    """`container(kind)`: one of each kind a test module, destroyed after it. Import this fixture where it is used."""
    made: dict[Kind, Container] = {}

    def get(kind: Kind) -> Container:
        if kind not in made:
            made[kind] = make(kind)
        return made[kind]

    yield get
    for one in made.values():
        one.destroy()
