"""The condition TenantIsolationUnknown: which engines promise that tenants share no cached prompts."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Condition, Phase
from slipway_operator.model.cluster.plan import Plan
from tests.support.model_cluster import SETTINGS, ModelCluster, healthy, model
from tests.support.planned import plan

pytestmark = [pytest.mark.finding("F13"), pytest.mark.attack_class(19)]

ENGINES: dict[str, dict[str, Any]] = {
    "slipway": {},
    "vllm": {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"},
    "sglang": {"type": "sglang", "image": "lmsysorg/sglang:v0.6.0"},
    "sglang without cache": {"type": "sglang", "image": "lmsysorg/sglang:v0.6.0", "args": ["--disable-radix-cache"]},
    "custom": {"type": "custom", "image": "other:1"},
}


def served(engine: str) -> ModelCluster:
    return healthy(engine=ENGINES[engine]) if ENGINES[engine] else healthy()


def reconciled(world: ModelCluster, tenants: bool | None) -> Plan:
    return plan(world.obj(), world.parsed(), replace(world.observed(), tenants=tenants), SETTINGS, world.now)


def shown(found: Plan) -> Condition | None:
    return next((item for item in found.status.conditions if item.type == "TenantIsolationUnknown"), None)


@pytest.mark.parametrize("engine", ["slipway", "vllm", "sglang without cache"])
def test_engines_that_separate_tenants_have_no_condition(engine: str) -> None:
    assert shown(reconciled(served(engine), tenants=True)) is None


@pytest.mark.parametrize(
    ("engine", "reason", "remedy"),
    [
        (
            "sglang",
            "NotTested",
            "add --disable-radix-cache to spec.engine.args, or let one tenant alone use this model",
        ),
        ("custom", "UnknownEngine", "turn off its cache of prompts, or let one tenant alone use this model"),
    ],
)
def test_other_engines_promise_nothing_and_the_condition_says_so(engine: str, reason: str, remedy: str) -> None:
    world = served(engine)
    assert shown(reconciled(world, tenants=False)) is None, "no one was promised anything"
    found = reconciled(world, tenants=True)
    condition = shown(found)
    assert condition and (condition.status, condition.reason) == ("True", reason)
    assert remedy in condition.message and f"revision {found.status.stable_revision}" in condition.message
    assert (found.status.phase, found.status.reason) == (Phase.HEALTHY, None), "it blocks nothing"


def test_a_canary_of_an_unknown_engine_is_named() -> None:
    world = healthy()
    world.edit(model=model("v2"), engine=ENGINES["custom"])
    world.run_until("Paused")
    condition = shown(reconciled(world, tenants=True))
    assert condition and f"revision {world.parsed().canary_revision}" in condition.message


def test_the_condition_stays_until_tenants_were_read() -> None:
    """A restart of the operator writes no status twice."""
    world = served("custom")
    before = reconciled(world, tenants=True)
    observed = replace(world.observed(), tenants=None)
    after = plan(world.obj(), before.status, observed, SETTINGS, world.now)
    assert shown(after) == shown(before)
    assert shown(reconciled(served("custom"), tenants=None)) is None
