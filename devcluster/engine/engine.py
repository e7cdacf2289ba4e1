"""The engine in use: one object that runs its commands with the right environment."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.engine import facts as host_facts
from devcluster.engine.choice import Choice, Facts, Install, Missing, Use, choose, needs_own_configuration
from devcluster.errors import DevclusterError
from devcluster.pins import ENGINE_PACKAGES
from devcluster.places import Places, write_whole
from devcluster.processes import run, succeeds

MARK = "SLIPWAY_DEVCLUSTER"  # in the environment of every engine process of ours, so that `down` finds stray ones


# What building images here needs beside the engine, and the package that brings each program.
ENGINE_PROGRAMS = {"mmdebstrap": "mmdebstrap", "catatonit": "catatonit"}


@dataclass(frozen=True, slots=True)
class Engine:
    """docker or podman, on the machine's own store or on ours."""

    name: str
    own_store: bool
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str | Path, stdin: str | None = None, timeout: float | None = None) -> str:
        return run([self.name, *arguments], env=self.env, stdin=stdin, timeout=timeout, may_outlive_us=True)

    def succeeds(self, *arguments: str, timeout: float | None = None) -> bool:
        return succeeds([self.name, *arguments], env=self.env, timeout=timeout)

    def has_image(self, reference: str) -> bool:
        return self.succeeds("image", "inspect", reference)

    def containers(self, cluster: str) -> list[str]:
        """The node containers of one kind cluster, running or not; that of the control plane first."""
        label = f"label=io.x-k8s.kind.cluster={cluster}"
        return sorted(self.run("ps", "-a", "--filter", label, "--format", "{{.Names}}").split())

    @property
    def network(self) -> str:
        """The network that kind puts its nodes on."""
        return self.env.get("KIND_EXPERIMENTAL_PODMAN_NETWORK", "kind")

    def has_network(self, name: str) -> bool:
        return self.succeeds("network", "inspect", name)


def find(places: Places) -> tuple[Engine, Facts]:
    """The engine to use; installs podman where that is possible and nothing else is there."""
    facts = host_facts.observe()
    choice = choose(facts)
    if isinstance(choice, Install):
        install_packages(ENGINE_PACKAGES)
        facts = host_facts.observe()
        choice = choose(facts)
    return engine_of(choice, facts, places), facts


def engine_of(choice: Choice, facts: Facts, places: Places) -> Engine:
    """The object for a decision."""
    if isinstance(choice, Missing):
        raise DevclusterError(choice.message)
    if not isinstance(choice, Use):
        raise DevclusterError("podman was installed but is not on PATH: look at PATH and try again.")
    env = {MARK: places.cluster, "KIND_EXPERIMENTAL_PROVIDER": choice.engine}
    own = choice.engine == "podman" and needs_own_configuration(facts)
    if own:
        env |= write_configuration(places, can_raise_limits=facts.can_raise_limits)
        # netavark names its firewall chains after the network: one name for two stores would mix their rules.
        env["KIND_EXPERIMENTAL_PODMAN_NETWORK"] = places.run.name
    return Engine(choice.engine, own, env)


def install_packages(packages: tuple[str, ...]) -> None:
    """apt-get, quietly; the first failure is usually an old package list."""
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    if not succeeds(install, env=environment):
        run(["apt-get", "update", "-qq"], env=environment)
        run(install, env=environment)


def missing_packages(programs: dict[str, str]) -> tuple[str, ...]:
    """The packages of the programs that are not on PATH."""
    path = "/usr/local/sbin:/usr/sbin:/sbin"
    return tuple(package for program, package in programs.items()
                 if not shutil.which(program) and not shutil.which(program, path=path))  # fmt: skip


def write_configuration(places: Places, *, can_raise_limits: bool) -> dict[str, str]:
    """Writes podman's own configuration and returns the variables that select it (kind passes them on)."""
    containers, storage = places.engine / "containers.conf", places.engine / "storage.conf"
    temporary = places.work / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (containers, containers_conf(places, can_raise_limits=can_raise_limits)),
        (storage, storage_conf(places, volatile=host_facts.knows_volatile())),
    ):
        if not path.exists() or path.read_text() != text:
            write_whole(path, text)
    return {
        "CONTAINERS_CONF": str(containers),
        "CONTAINERS_STORAGE_CONF": str(storage),
        "TMPDIR": str(temporary),
    }


def containers_conf(places: Places, *, can_raise_limits: bool) -> str:
    """podman's settings for a host without systemd or without the right to raise limits (pure)."""
    # podman raises these two by default, which such a host refuses ("error setting rlimit type 7").
    limits = "" if can_raise_limits else 'default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]'
    return f"""[containers]
{limits}
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "none"
lock_type = "file"
tmp_dir = "{places.run}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{places.engine}/networks"
"""


def storage_conf(places: Places, *, volatile: bool) -> str:
    """The own image store, inside the cache, and the one that is lent (pure)."""
    lent = f'[storage.options]\nadditionalimagestores = ["{places.lent_images}"]\n' if places.lent_images else ""
    # What a container writes goes with it: no step has to wait until a gigabyte of images in a node is on disk.
    options = '[storage.options.overlay]\nmountopt = "volatile"\n' if volatile else ""
    return f"""[storage]
driver = "overlay"
graphroot = "{places.images}"
runroot = "{places.run}/storage"
{lent}{options}"""
