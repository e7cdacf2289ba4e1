"""Looks at the host: which engines answer, what this process may do."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from devcluster.engine.choice import Facts
from devcluster.keys import version_in
from devcluster.processes import succeeds

_CAP_SYS_RESOURCE = 24
_DOCKER_ANSWERS_WITHIN_S = 5


def observe() -> Facts:
    """All facts in less than a second, where the docker daemon answers or is absent."""
    docker = shutil.which("docker") is not None
    return Facts(
        docker_installed=docker,
        docker_answers=docker and succeeds(["docker", "info"], timeout=_DOCKER_ANSWERS_WITHIN_S),
        podman_installed=shutil.which("podman") is not None,
        apt_get=shutil.which("apt-get") is not None,
        root=os.geteuid() == 0,
        can_raise_limits=_has_capability(_CAP_SYS_RESOURCE),
        systemd=Path("/run/systemd/system").is_dir(),
        linux=sys.platform == "linux",
    )


def cgroup_v1() -> bool:
    """Whether the kubelet needs a setting to accept the old control groups."""
    return Path("/sys/fs/cgroup").is_dir() and not Path("/sys/fs/cgroup/cgroup.controllers").exists()


def machine() -> str:
    return platform.machine()


def knows_volatile() -> bool:
    """Whether an overlay can be mounted without a promise about what a crash of the machine leaves (Linux 5.10)."""
    return version_in(platform.release()) >= (5, 10)


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status")
    if not status.exists():
        return True
    bounding = next(line for line in status.read_text().splitlines() if line.startswith("CapBnd"))
    return bool(int(bounding.split()[1], 16) >> number & 1)
