"""The operator writes a status that the CRD accepts, whatever messages and objects others write."""

import copy
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from slipway_operator.model.cluster.observed import Autoscaler, Observed, PodTrouble, ScalerCondition, Workload
from slipway_operator.model.deployment import status as status_room
from tests.support.model_cluster import SETTINGS, START, ModelCluster, healthy, model
from tests.support.planned import plan

CRD = yaml.load((Path(__file__).parents[3] / "crds" / "modeldeployments.yaml").read_text(), yaml.CSafeLoader)
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
LARGEST = 1_000_000  # bytes; etcd takes half as many again
LONG = ("", "no", "R" * 70, "denied the request: " + "y" * 700_000)
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


def broken(schema: dict[str, Any], value: Any, path: str = "status") -> list[str]:
    """Places where a value does not match the schema."""
    kind = schema.get("type")
    if kind and not isinstance(value, TYPES[kind]):
        return [f"{path}: {type(value).__name__} for {kind}"]
    found = [f"{path}: {value!r:.60} is none of the values"] if value not in schema.get("enum", (value,)) else []
    if kind == "object":
        found += [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value]
        parts = schema.get("properties", {})
        for name, item in value.items():
            found += broken(parts[name], item, f"{path}.{name}") if name in parts else []
    if kind in ("string", "array"):
        limit = schema.get("maxLength", schema.get("maxItems"))
        found += [f"{path}: {len(value)} over {limit}"] if limit is not None and len(value) > limit else []
    if kind == "array":
        found += [one for item in value for one in broken(schema["items"], item, f"{path}[]")]
    if kind == "integer":
        bits = 31 if schema.get("format") == "int32" else 63
        found += [] if -(2**bits) <= value < 2**bits else [f"{path}: {value} has no room"]
    return found


def paused() -> ModelCluster:
    world = healthy()
    world.edit(model=model("v2"))
    world.run_until("Paused")
    return world


def aborted() -> ModelCluster:
    world = paused()
    world.edit(rollout__abort=world.parsed().rollout.attempt_token)  # type: ignore[union-attr]
    world.run_until("Aborted")
    return world


WORLDS = {"idle": healthy, "paused": paused, "aborted": aborted}


def with_foreign_values(observed: Observed, random: Random) -> Observed:
    """The same cluster with messages, numbers and objects of others in it."""
    workloads = dict(observed.workloads)
    for name, item in workloads.items():
        trouble = PodTrouble("p" * 253, random.choice(LONG) or "Error", random.choice(LONG))
        workloads[name] = replace(item, ready=random.choice((0, item.ready)), troubles=(trouble,))
    some = next(iter(workloads.values()))
    for number in range(random.choice((0, 3, 80))):
        name = f"old{number:07}"
        workloads[name] = Workload(name, random.choice((0, 1)), 0, 0, name=f"chat-{name}", uid=f"{some.uid}-{number}")
    gateways = tuple(
        replace(item, inflight={name: random.choice((-5, 0, 2**70)) for name in workloads})
        for item in observed.gateways
    )
    condition = ScalerCondition("AbleToScale", "False", random.choice(LONG), random.choice(LONG))
    theirs = Autoscaler("mine", False, True, START, {}, (condition,))
    return replace(
        observed,
        workloads=workloads,
        gateways=gateways,
        refusal=random.choice((None, *LONG)),
        autoscalers=(theirs,) if random.random() < 0.5 else (),
        autoscaler_refusal=random.choice(LONG),
    )


@pytest.mark.parametrize("name", WORLDS)
def test_any_world_has_a_status_that_the_schema_takes(name: str) -> None:
    base = WORLDS[name]()
    for seed in range(60):
        random, world = Random(seed), copy.deepcopy(base)
        if random.random() < 0.3:
            world.edit(resources__accelerator={"count": 2})
        if world.status.get("rollout") and random.random() < 0.5:
            reason = {"reason": random.choice(LONG), "message": "m", "at": "2026-01-01T00:00:00Z"}
            world.patch_status(rollout=world.status["rollout"] | {"state": "Aborted", "abort": reason})
        for _ in range(3):
            now = world.now + timedelta(seconds=random.choice((0, 30, 600)))
            made = plan(world.obj(), world.parsed(), with_foreign_values(world.observed(), random), SETTINGS, now)
            written = json.loads(json.dumps(status_room.render(made.status)))
            assert broken(SCHEMA, written) == [], (seed, name)
            assert len(json.dumps(written)) < LARGEST
            assert status_room.render(status_room.parse(written)) == written, "what is written is read"
            world.status, world._parsed, world._written = written, None, None


def test_of_more_revisions_than_a_status_lists_the_live_ones_are_listed() -> None:
    world = paused()
    observed = world.observed()
    old = {f"aaa{number:07}": Workload(f"aaa{number:07}", 1, 0, 0, name=f"chat-{number}") for number in range(80)}
    crowded = replace(observed, workloads={**observed.workloads, **old})
    made = plan(world.obj(), world.parsed(), crowded, SETTINGS, world.now)
    roles = {item.role for item in made.status.revisions}
    assert len(made.status.revisions) == 64 and {"stable", "canary"} <= roles
