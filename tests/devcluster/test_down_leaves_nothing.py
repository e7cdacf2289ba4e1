"""`down` takes everything back, also after a kill -9 of `up`: asserted on a second cluster in a cache of its own.

It may run beside the usual cluster: names, folders, ports and the engine's store are its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.engine import facts
from devcluster.engine.choice import Missing, choose, needs_own_configuration
from devcluster.images import nodeimage
from devcluster.places import REPOSITORY, Places, places

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NAME = "slipway-trace"
_SYSCTLS = ("vm", "kernel/panic", "kernel/panic_on_oops", "kernel/keys", "fs/inotify", "net/ipv4/ip_forward",
            "net/ipv4/conf/all", "net/ipv6/conf/all", "net/ipv4/conf/default")  # fmt: skip
_CGROUPS = ("libpod_parent", "kubepods", "kubelet", "kubelet.slice", "k8s.io", "machine.slice")


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A cache with the binaries of the usual one, but its own engine store and state.

    The usual store lends the node image, if it has it: to build or to copy it takes a minute, and shows nothing here.
    """
    found = facts.observe()
    choice = choose(found)
    if isinstance(choice, Missing) or not needs_own_configuration(found) or found.docker_answers:
        pytest.skip("asserts what devcluster's own engine configuration leaves; this host uses the machine's engine")
    usual = places()
    if not all(step.done() for step in nodeimage.binary_steps(usual)):
        pytest.skip("the node's binaries are not built: python -m devcluster up")
    home = tmp_path_factory.mktemp("cache")
    for name in ("bin", "kind-files"):
        shutil.copytree(usual.cache / name, home / "slipway" / name, copy_function=_link, dirs_exist_ok=True)
    lent = usual.images if usual.images.exists() else None
    where = Places(home / "slipway", home / "slipway" / "state", NAME, lent)
    yield where
    devcluster(where, "down")
    shutil.rmtree(home)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """A network namespace as a container of another podman has it."""
    name = "netns-slipway-elsewhere"
    output("ip", "netns", "add", name)
    with subprocess.Popen(["ip", "netns", "exec", name, "sleep", "infinity"], env=as_administrator()) as inhabitant:
        yield
        inhabitant.kill()
    output("ip", "netns", "delete", name)


def test_down_leaves_nothing(own: Places, elsewhere: None) -> None:
    before = traces()
    killed_while(own, "start the node", after_s=4)
    output("ip", "netns", "add", "netns-slipway-orphan")
    devcluster(own, "down")
    assert_same(before, traces(), "after kill -9 of `up` while the node started")

    killed_while(own, "prepare the host", after_s=0)
    devcluster(own, "down")
    assert_same(before, traces(), "after kill -9 of `up` while the host was prepared")

    devcluster(own, "up")
    assert devcluster(own, "status").returncode == 0
    started = time.monotonic()
    devcluster(own, "up")
    assert time.monotonic() - started < 5, "`up` of a running cluster takes too long"
    devcluster(own, "down")
    assert_same(before, traces(), "after `up` and `down`")
    assert not own.state_root.exists() and not own.run.exists()
    assert_store_is_empty(own)
    assert devcluster(own, "down").returncode == 0, "a second `down` has nothing to do and succeeds"


def devcluster(where: Places, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), env=environment(where), cwd=REPOSITORY, capture_output=True, text=True)
    if arguments[0] in ("up", "down"):
        assert done.returncode == 0, done.stderr
    return done


def killed_while(where: Places, step: str, *, after_s: float) -> None:
    """Runs `up` until it announces the step, and kills it some seconds later."""
    with subprocess.Popen(
        command("up"),
        env=environment(where),
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as up:
        assert up.stderr
        printed = ""
        for line in up.stderr:
            printed += line
            if step in line:
                break
        else:
            pytest.fail(f"`up` never printed {step!r}:\n{printed}")
        time.sleep(after_s)
        up.send_signal(signal.SIGKILL)


def traces() -> dict[str, set[str]]:
    """Everything outside the cache that a cluster could leave."""
    return {
        "network interfaces": {line.split(":")[1].strip() for line in output("ip", "-o", "link").splitlines()},
        "network namespaces": set(output("ip", "netns", "list").splitlines()),
        "routes": set(output("ip", "route").splitlines()),
        "mounts": mounts(),
        "firewall chains": {line.split()[0] for line in output("iptables-save").splitlines() if line.startswith(":")},
        "firewall rules": {line for line in output("iptables-save").splitlines() if line.startswith("-A")},
        "firewall rules (IPv6)": {line for line in output("ip6tables-save").splitlines() if line.startswith("-A")},
        "nftables": set(output("nft", "list", "tables").splitlines()),
        "cgroups": {str(path) for name in _CGROUPS for path in cgroups(name)},
        "sysctls": {f"{path} = {value}" for path, value in sysctls()},
        "processes": set(marked_processes()),
        "folders": {str(path) for path in folders()},
    }


def mounts() -> set[str]:
    """Without those of tests that run at the same time, in workers of pytest-xdist."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return {" ".join(line.split()[:3]) for line in lines if "/popen-gw" not in line}


def assert_same(before: dict[str, set[str]], after: dict[str, set[str]], when: str) -> None:
    left = {what: sorted(after[what] - before[what]) for what in before if after[what] - before[what]}
    gone = {what: sorted(before[what] - after[what]) for what in before if before[what] - after[what]}
    assert not left, f"{when}, something was left: {left}"
    assert not gone, f"{when}, something was taken that was there: {gone}"


def assert_store_is_empty(where: Places) -> None:
    storage = where.images
    containers = storage / "overlay-containers" / "containers.json"
    assert not containers.exists() or containers.read_text().strip() in ("", "[]", "null")
    assert not [path for path in (storage / "volumes").glob("*") if path.is_dir()], "volumes were left"
    assert not list((where.engine / "networks").glob("*.json")), "the network was left"


def cgroups(name: str) -> Iterator[Path]:
    """Groups of containers, not what a running container makes inside its own."""
    for parent in (*Path("/sys/fs/cgroup").glob(name), *Path("/sys/fs/cgroup").glob(f"*/{name}")):
        yield parent
        yield from (path for path in parent.glob("*") if path.is_dir())


def sysctls() -> Iterator[tuple[str, str]]:
    for name in _SYSCTLS:
        root = Path("/proc/sys") / name
        for path in [root] if root.is_file() else root.rglob("*"):
            try:
                yield str(path), path.read_text().strip()
            except OSError:  # some can only be written
                continue


def marked_processes() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"SLIPWAY_DEVCLUSTER={NAME}".encode() in (path / "environ").read_bytes():
                yield (path / "comm").read_text().strip()
        except OSError:
            continue


def folders() -> Iterator[Path]:
    """Of shared memory only podman's: tests that run at the same time have PostgreSQL, OpenMP and torch."""
    for parent in ("/run", "/var/lib", "/lib/modules", "/etc/cni", "/var/lib/cni", "/etc/containers"):
        yield from Path(parent).glob("*")
    yield from Path("/dev/shm").glob("libpod*")
    yield from Path.home().glob(".kube/*")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "devcluster", *arguments]


def environment(where: Places) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "CONTAINERS_"))}
    own = {"XDG_CACHE_HOME": str(where.cache.parent), "SLIPWAY_CLUSTER": where.cluster}
    return clean | own | ({"SLIPWAY_LENT_IMAGES": str(where.lent_images)} if where.lent_images else {})


def output(*program: str) -> str:
    return subprocess.run(program, capture_output=True, text=True, env=as_administrator()).stdout


def as_administrator() -> dict[str, str]:
    return os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
