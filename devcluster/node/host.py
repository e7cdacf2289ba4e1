"""What a cluster changes on the host, written down before it changes, and how each of it is taken back."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from devcluster.engine.engine import MARK
from devcluster.places import Places, write_whole
from devcluster.processes import run, succeeds

# The kubelet and the engine write these machine-wide.
_SYSCTLS = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes", "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/route_localnet", "fs/inotify/max_user_instances",
)  # fmt: skip
_INOTIFY_INSTANCES = 512
_FIREWALL = ("iptables", "ip6tables")
_STRAY_WAIT_S = 5.0
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin"


def remember(places: Places) -> None:
    """Writes down how the host was, once: a second cluster must not take the first one's changes for it."""
    if memory(places).exists():
        return
    facts = {
        "sysctls": {name: value for name in _SYSCTLS if (value := _read_sysctl(name)) is not None},
        "modules_folder": Path("/lib/modules").exists(),
        "netns_mounted": "/run/netns" in mount_points(),
        "tables": _nft_tables(),
        "run_folders": [str(path) for path in _run_folders() if path.exists()],
    }
    write_whole(memory(places), json.dumps(facts, indent=1))


def prepare() -> None:
    """The two things that a node needs from the host and a small one lacks."""
    Path("/lib/modules").mkdir(parents=True, exist_ok=True)
    instances = _read_sysctl("fs/inotify/max_user_instances")
    if instances and int(instances) < _INOTIFY_INSTANCES:
        _write_sysctl("fs/inotify/max_user_instances", str(_INOTIFY_INSTANCES))


def restore(places: Places) -> None:
    """Takes back all of it; the caller knows that no cluster of ours is left."""
    if not memory(places).exists():
        return
    facts = json.loads(memory(places).read_text())
    _unmount(places, keep_netns=facts["netns_mounted"])
    remove_firewall_chains(set(facts["tables"]))
    remove_cgroups()
    for name, value in facts["sysctls"].items():
        if _read_sysctl(name) != value:
            _write_sysctl(name, value)
    if not facts["modules_folder"] and Path("/lib/modules").exists():
        remove_if_empty(Path("/lib/modules"))
    for path in _run_folders():
        if str(path) not in facts["run_folders"]:
            shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(places.run, ignore_errors=True)
    memory(places).unlink()


def stop_strays(cluster: str) -> None:
    """Ends commands of a killed `up` that still run; the container monitors stay, the engine ends those itself."""
    deadline = time.monotonic() + _STRAY_WAIT_S
    while (strays := _strays(cluster)) and time.monotonic() < deadline:
        for process in strays:
            _kill(process)
        time.sleep(0.2)


def mount_points() -> list[str]:
    """Where something is mounted, as this process sees it."""
    mounts = Path("/proc/mounts")
    return [line.split()[1] for line in mounts.read_text().splitlines()] if mounts.exists() else []


def firewall_chains(saved: str) -> list[tuple[str, str]]:
    """(table, chain) of the engine's network in the output of iptables-save (pure)."""
    found, table = [], ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":NETAVARK"):
            found.append((table, line[1:].split()[0]))
    return found


def firewall_jumps(saved: str) -> list[tuple[str, list[str]]]:
    """(table, arguments that delete it) of each rule that leads into those chains from a chain that stays (pure)."""
    found, table = [], ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith("-A") and " NETAVARK" in line and not line.startswith("-A NETAVARK"):
            found.append((table, ["-D", *shlex.split(line)[1:]]))
    return found


def remove_firewall_chains(tables_before: set[str]) -> None:
    """Deletes the chains that netavark leaves, then the tables that exist only for them."""
    for program in _FIREWALL:
        if not shutil.which(program, path=_ADMIN_PATH):
            continue
        saved = run([f"/usr/sbin/{program}-save"]) if Path(f"/usr/sbin/{program}-save").exists() else ""
        for table, arguments in firewall_jumps(saved):
            succeeds([program, "-t", table, *arguments])
        for action in ("-F", "-X"):
            for table, chain in firewall_chains(saved):
                succeeds([program, "-t", table, action, chain])
    for name in set(_nft_tables()) - tables_before:
        if name.split()[-1] in ("nat", "filter", "mangle", "raw") and not _has_rules(name):
            succeeds(["nft", "delete", "table", *name.split()])


def remove_cgroups() -> None:
    """podman's parent groups stay when its containers are gone; only empty ones can be removed at all."""
    roots = Path("/sys/fs/cgroup")
    for parent in [*roots.glob("libpod_parent"), *roots.glob("*/libpod_parent")]:
        for folder, _, _ in os.walk(parent, topdown=False):
            remove_if_empty(Path(folder))




def memory(places: Places) -> Path:
    """The file that says how the host was; there as long as anything may be changed."""
    return places.state_root / "host.json"


def _run_folders() -> Iterable[Path]:
    return (Path("/run/containers"), Path("/run/libpod"), Path("/run/runc"), Path("/var/lib/containers"),
            Path("/run/crun"), Path("/run/netavark"))  # fmt: skip


def _unmount(places: Places, *, keep_netns: bool) -> None:
    ours = (str(places.engine), str(places.run))
    for point in sorted(mount_points(), reverse=True):
        if point.startswith(ours) or (point.startswith("/run/netns") and not keep_netns):
            succeeds(["umount", "-l", point])
    if not keep_netns and Path("/run/netns").exists() and not any(Path("/run/netns").iterdir()):
        remove_if_empty(Path("/run/netns"))


def _strays(cluster: str) -> list[int]:
    wanted = f"{MARK}={cluster}".encode()
    return [pid for pid in _processes() if pid != os.getpid() and _is_stray(pid, wanted)]


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _is_stray(pid: int, wanted: bytes) -> bool:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return wanted in environment and name not in ("conmon", "aardvark-dns")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _nft_tables() -> list[str]:
    if not shutil.which("nft", path=_ADMIN_PATH) or os.geteuid() != 0:
        return []
    return [line.removeprefix("table ").strip() for line in run(["nft", "list", "tables"]).splitlines()]


def _has_rules(table: str) -> bool:
    chain_lines = ("table", "chain", "type", "}", "#")
    lines = (line.strip() for line in run(["nft", "list", "table", *table.split()]).splitlines())
    return any(line and not line.startswith(chain_lines) for line in lines)


def _read_sysctl(name: str) -> str | None:
    path = Path("/proc/sys") / name
    return path.read_text().strip() if path.exists() else None


def _write_sysctl(name: str, value: str) -> None:
    try:
        (Path("/proc/sys") / name).write_text(value)
    except OSError as error:
        print(f"could not set {name.replace('/', '.')} to {value}: {error.strerror}")


def remove_if_empty(path: Path) -> None:
    """Removes a folder unless something is in it (or it is not ours to remove)."""
    with suppress(OSError):
        path.rmdir()
