"""What a cluster changes on the host, written down before it changes, and how each of it is taken back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from devcluster.engine.engine import MARK
from devcluster.node import network
from devcluster.node.network import Network
from devcluster.places import Places, write_whole
from devcluster.processes import succeeds

# The kubelet and the engine write these machine-wide.
_SYSCTLS = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes", "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/route_localnet", "fs/inotify/max_user_instances",
)  # fmt: skip
_INOTIFY_INSTANCES = 512
_STRAY_WAIT_S = 30.0
_ENGINES = ("podman", "docker", "buildah", "netavark", "runc")


def remember(places: Places) -> None:
    """Writes down how the host was, once: a second cluster must not take the first one's changes for it."""
    if memory(places).exists():
        return
    facts = {
        "sysctls": {name: value for name in _SYSCTLS if (value := _read_sysctl(name)) is not None},
        "modules_folder": Path("/lib/modules").exists(),
        "netns_mounted": "/run/netns" in mount_points(),
        "tables": network.nft_tables(),
        "chains": network.all_chains(),
        "run_folders": [str(path) for path in _run_folders() if path.exists()],
    }
    write_whole(memory(places), json.dumps(facts, indent=1))


def prepare() -> None:
    """The two things that a node needs from the host and a small one lacks."""
    Path("/lib/modules").mkdir(parents=True, exist_ok=True)
    instances = _read_sysctl("fs/inotify/max_user_instances")
    if instances and int(instances) < _INOTIFY_INSTANCES:
        _write_sysctl("fs/inotify/max_user_instances", str(_INOTIFY_INSTANCES))


def restore(places: Places, networks: list[Network]) -> None:
    """Takes back all of it; the caller knows that no cluster of ours is left, and which networks it had."""
    if not memory(places).exists():
        return
    facts = json.loads(memory(places).read_text())
    for one in networks:
        network.remove_links(one)
    _unmount(places, keep_netns=facts["netns_mounted"])
    network.remove_rules(networks, set(facts["chains"]))
    network.remove_empty_tables(set(facts["tables"]))
    remove_cgroups()
    for name, value in facts["sysctls"].items():
        if _read_sysctl(name) != value:
            _write_sysctl(name, value)
    if not facts["modules_folder"] and Path("/lib/modules").exists():
        remove_if_empty(Path("/lib/modules"))
    for path in _run_folders():
        if str(path) not in facts["run_folders"]:
            _remove_run_folder(path)
    shutil.rmtree(places.run, ignore_errors=True)
    memory(places).unlink()


def stop_strays(cluster: str) -> None:
    """Ends what a killed `up` left running. An engine's command may finish: half a network is harder to take back."""
    deadline = time.monotonic() + _STRAY_WAIT_S
    while strays := _strays(cluster):
        late = time.monotonic() > deadline
        for process, name in strays.items():
            if late or name not in _ENGINES:
                _kill(process)
        if late:
            return
        time.sleep(0.2)


def mount_points() -> list[str]:
    """Where something is mounted, as this process sees it."""
    mounts = Path("/proc/mounts")
    return [line.split()[1] for line in mounts.read_text().splitlines()] if mounts.exists() else []


def remove_cgroups() -> None:
    """podman's parent groups stay when its containers are gone; only empty ones can be removed at all."""
    roots = Path("/sys/fs/cgroup")
    for parent in [*roots.glob("libpod_parent"), *roots.glob("*/libpod_parent")]:
        _remove_empty_tree(parent)


def memory(places: Places) -> Path:
    """The file with the former state of the host; there as long as anything may be changed."""
    return places.state_root / "host.json"


def _run_folders() -> Iterable[Path]:
    return (Path("/run/containers"), Path("/run/libpod"), Path("/run/runc"), Path("/var/lib/containers"),
            Path("/run/crun"), Path("/run/mount"), Path("/run/netavark"))  # fmt: skip


def _unmount(places: Places, *, keep_netns: bool) -> None:
    ours = (str(places.engine), str(places.run))
    for point in sorted(mount_points(), reverse=True):
        if point.startswith(ours):
            succeeds(["umount", "-l", point])
    network.remove_unused_namespaces()
    folder = Path("/run/netns")
    if not keep_netns and folder.exists() and not any(folder.iterdir()):
        if str(folder) in mount_points():
            succeeds(["umount", "-l", str(folder)])
        remove_if_empty(folder)


def _strays(cluster: str) -> dict[int, str]:
    wanted = f"{MARK}={cluster}".encode()
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return {pid: name for pid in pids if pid != os.getpid() and (name := _stray_name(pid, wanted))}


def _stray_name(pid: int, wanted: bytes) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    # The monitors of running containers end with them.
    return name if wanted in environment and name not in ("conmon", "aardvark-dns") else ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _read_sysctl(name: str) -> str | None:
    path = Path("/proc/sys") / name
    return path.read_text().strip() if path.exists() else None


def _write_sysctl(name: str, value: str) -> None:
    try:
        (Path("/proc/sys") / name).write_text(value)
    except OSError as error:
        print(f"could not set {name.replace('/', '.')} to {value}: {error.strerror}")


def _remove_run_folder(path: Path) -> None:
    """netavark keeps its addresses in a folder that all stores share: it goes when no network uses it any more."""
    if path.name == "containers" and not network.any_left():
        shutil.rmtree(path, ignore_errors=True)
    for cached in path.glob("cache/blob-info-cache*"):  # of /var/lib/containers; every store writes there
        cached.unlink()
    _remove_empty_tree(path)  # what is not empty is another engine's


def _remove_empty_tree(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        remove_if_empty(Path(folder))


def remove_if_empty(path: Path) -> None:
    """Removes a folder unless something is in it (or it is not ours to remove)."""
    with suppress(OSError):
        path.rmdir()
