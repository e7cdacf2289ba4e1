"""Decides which container engine to use and whether it needs a configuration of its own (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found on the host."""

    docker_installed: bool
    docker_answers: bool
    podman_installed: bool
    apt_get: bool
    root: bool
    can_raise_limits: bool  # CAP_SYS_RESOURCE
    systemd: bool
    linux: bool = True


@dataclass(frozen=True, slots=True)
class Use:
    """An engine that is there."""

    engine: str


@dataclass(frozen=True, slots=True)
class Install:
    """podman and its friends come from the distribution's packages first."""


@dataclass(frozen=True, slots=True)
class Missing:
    """No engine, and none that could be installed: a sentence for the user."""

    message: str


Choice = Use | Install | Missing


def choose(facts: Facts) -> Choice:
    """Docker when its daemon answers, else podman, else what the package manager can bring."""
    if facts.docker_answers:
        return Use("docker")
    if facts.podman_installed:
        return Use("podman")
    if facts.apt_get and facts.root:
        return Install()
    return Missing(_why_none(facts))


def needs_own_configuration(facts: Facts) -> bool:
    """Whether podman's defaults fail here: they raise limits and talk to systemd."""
    return facts.linux and not (facts.can_raise_limits and facts.systemd)


def _why_none(facts: Facts) -> str:
    if facts.docker_installed:
        return "Docker is installed but its daemon does not answer: start it (`docker info` must work), or get podman."
    if facts.apt_get:
        return "No container engine: install Docker or podman (`sudo apt-get install podman`), or run this as root."
    return "No container engine: install Docker or podman and try again."
