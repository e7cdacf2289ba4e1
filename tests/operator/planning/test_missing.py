"""The matrix: whatever is missing in any phase, what serves stays; the end is as before, or a condition says why."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from slipway_operator.planning.conditions.table import is_problem
from tests.support.forgery import Forged
from tests.support.missing import OF_A_NAMESPACE, OF_A_REVISION, PHASES, Roles, world_in
from tests.support.model_cluster import ModelCluster

pytestmark = pytest.mark.finding("L1")

SHOWN = {"ResolvedRefs", "Ready", "Available", "StableHealthy", "ForeignObjects", "Progressing"}


@pytest.mark.parametrize("role", ["stable", "other"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("damage", OF_A_REVISION)
def test_what_a_revision_lacks_is_not_guessed(damage: str, phase: str, role: str) -> None:
    world, roles = world_in(phase)
    before, untouched = pods(world, roles), role != "stable"
    OF_A_REVISION[damage](world, getattr(roles, role))
    world.__class__ = Forged
    stays(world, roles, before if untouched or "ReplicaSet" not in damage else 0)
    settles(world, phase, roles)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("damage", OF_A_NAMESPACE)
def test_what_a_restored_namespace_lacks_is_not_guessed(damage: str, phase: str) -> None:
    world, roles = world_in(phase)
    before = pods(world, roles)
    OF_A_NAMESPACE[damage](world)
    world.__class__ = Forged
    stays(world, roles, before if "ReplicaSet" not in damage and "only" not in damage else 0)
    settles(world, phase, roles)


def pods(world: ModelCluster, roles: Roles) -> int:
    return world.pods[roles.stable].desired if roles.stable in world.pods else 0


def pauses() -> Iterator[int]:
    """Seconds between the looks: soon at first, then rarely."""
    return itertools.chain(itertools.repeat(1, 12), itertools.repeat(6, 10))


def stays(world: ModelCluster, roles: Roles, least: int) -> None:
    """No revision gets traffic that it had not, and stable keeps its pods, at each moment."""
    for pause_s in pauses():
        world.reconcile()
        table = world.parsed().traffic
        for backend in table.backends if table else ():
            most = 100 if backend.revision == roles.stable else roles.tested
            assert backend.weight <= most, f"{backend.revision} has {backend.weight}: {world.parsed().message}"
        assert pods(world, roles) >= least, world.parsed().message
        world.pass_time(pause_s)


def settles(world: ModelCluster, phase: str, roles: Roles) -> None:
    """The end is that of a world to which nothing happened, or a condition says why."""
    reference = undamaged(phase)
    shown = {item.type for item in world.parsed().conditions if is_problem(item)} - ill(reference)
    end, wanted = needed(world, roles), needed(reference, roles)
    differs = {key: (end[key], wanted[key]) for key in wanted if end[key] != wanted[key]}
    assert not differs or SHOWN & shown, f"{differs}; {world.parsed().message}"


@cache
def undamaged(phase: str) -> ModelCluster:
    world, _ = world_in(phase)
    for pause_s in pauses():
        world.reconcile()
        world.pass_time(pause_s)
    return world


def ill(world: ModelCluster) -> set[str]:
    return {item.type for item in world.parsed().conditions if is_problem(item)}


def needed(world: ModelCluster, roles: Roles) -> dict[str, Any]:
    """The fixpoint, without what belongs to a revision that has left: its pods may go early, or nothing names it."""
    end, status = world.fixpoint(), world.parsed()
    live = {status.stable_revision, status.canary_revision}
    named = live | {status.current_revision, status.previous_revision}
    pods = {name: count for name, count in end["pods"].items() if name in live}
    return end | {
        "pods": pods,
        "services": end["services"] & live,
        "lost records": named - end.pop("snapshots") - {None},
    }
