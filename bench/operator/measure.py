"""One measurement: the fleet is there, the operator starts; then idles; then its specs change."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.operator import analyses, fleet
from bench.operator.cluster import Cluster, cluster, each
from bench.operator.fleet import Json, Key
from bench.operator.follow import METADATA, follow, session
from bench.operator.programs import Program
from slipway_operator.kube.resources import CONTROLLER_REVISIONS, MODEL_DEPLOYMENTS, REPLICA_SETS, SERVICES
from slipway_operator.model import labels

COLD_LIMIT_S = 600.0
QUIET_S, QUIET_LIMIT_S = 3.0, 120.0  # without a change of any ModelDeployment
IDLE_S = 15.0
RATE_PER_S = 10.0
APPLY_LIMIT_S = 60.0
LOOK_S = 0.25
SEED = 7


@dataclass(frozen=True, slots=True)
class Wish:
    """One line of the table."""

    size: int
    pods: bool
    changes: int
    seed: int = SEED


@dataclass(slots=True)
class Seen:
    """The fleet as its watch shows it."""

    size: int
    pods: bool
    all_listed: asyncio.Event = field(default_factory=asyncio.Event)
    settled: set[Key] = field(default_factory=set)
    all_settled: asyncio.Event = field(default_factory=asyncio.Event)
    settled_at_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    objects: dict[Key, Json] = field(default_factory=dict)

    def observe(self, kind: str, obj: Json) -> None:
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        self.objects[key] = {"metadata": obj["metadata"], "status": obj.get("status") or {}}
        self.changed.set()
        if len(self.objects) == self.size:
            self.all_listed.set()
        if not fleet.is_settled(obj, self.pods):
            self.settled.discard(key)
            self.all_settled.clear()
            return
        self.settled.add(key)
        if len(self.settled) == self.size and not self.all_settled.is_set():
            self.settled_at_s = time.monotonic()
            self.all_settled.set()


@dataclass(slots=True)
class Applied:
    """When the first child of a new revision was seen, by ModelDeployment."""

    waited: dict[Key, float] = field(default_factory=dict)  # since when
    taken_s: list[float] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def observe(self, kind: str, item: Json) -> None:
        metadata = item["metadata"]
        key = metadata["namespace"], (metadata.get("labels") or {}).get(labels.MODEL_DEPLOYMENT, "")
        if kind == "ADDED" and key in self.waited:
            self.taken_s.append(time.monotonic() - self.waited.pop(key))
            self.done.set()


async def measure(wish: Wish, folder: Path) -> Json:
    """A row of the table.

    Raises:
        DevclusterError: when a program is not built.
        Died: when one ended in the middle.
        TimeoutError: when the fleet did not get ready in time.
    """
    async with cluster(folder, pods=wish.pods) as surroundings:
        keys = fleet.keys(wish.size)
        began = time.monotonic()
        await each(keys, lambda key: surroundings.client.create(MODEL_DEPLOYMENTS, fleet.manifest(key)))
        row: Json = {"deployments": wish.size, "pods": wish.pods, "creating_s": time.monotonic() - began}
        seen, applied = Seen(wish.size, wish.pods), Applied()
        async with _watching(surroundings, seen, applied):
            operator = await surroundings.operator()
            row |= await _cold(surroundings, operator, seen)
            row |= await _complete(surroundings, seen)
            row |= await _idle(operator, seen)
            row |= await _change(surroundings, operator, applied, wish)
            if wish.pods:
                row |= await _analyze(surroundings, operator, seen, wish)
            row |= await _account(operator)
            row["peak_rss_mb"] = operator.peak_mb()
        return row


@contextlib.asynccontextmanager
async def _watching(surroundings: Cluster, seen: Seen, applied: Applied) -> AsyncIterator[None]:
    async with session(await surroundings.client.credentials()) as calls:
        tasks = [
            asyncio.create_task(follow(calls, MODEL_DEPLOYMENTS, seen.observe)),
            asyncio.create_task(follow(calls, CONTROLLER_REVISIONS, applied.observe, METADATA)),
        ]
        await asyncio.wait_for(seen.all_listed.wait(), APPLY_LIMIT_S)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _cold(surroundings: Cluster, operator: Program, seen: Seen) -> Json:
    """From the start of the process until every ModelDeployment is as expected."""
    began = time.monotonic()
    await surroundings.start(operator)
    while not seen.all_settled.is_set():
        operator.check()
        if time.monotonic() - began > COLD_LIMIT_S:
            raise TimeoutError(f"{len(seen.settled)} of {seen.size} are settled after {COLD_LIMIT_S:.0f} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(seen.all_settled.wait(), LOOK_S)
    others = {program.name: program.cpu_s() for program in surroundings.programs if program is not operator}
    return {
        "cold_s": seen.settled_at_s - began,
        "cold_cpu_s": operator.cpu_s(),
        "cold_rss_mb": operator.peak_mb(),
        "cold_calls": (await _account(operator))["calls_total"],
        "others_cpu_s": others,
    }


async def _complete(surroundings: Cluster, seen: Seen) -> Json:
    """Whether all children exist that a status names."""
    listed = {
        resource.kind: await surroundings.client.list(resource, None, cached=True)
        for resource in (CONTROLLER_REVISIONS, SERVICES, REPLICA_SETS)
    }
    missing = fleet.missing_children(seen.objects.values(), listed)
    return {"missing_children": len(missing), "first_missing": missing[:3]}


async def _idle(operator: Program, seen: Seen) -> Json:
    """What it costs to do nothing."""
    await _quiet(seen)
    cpu_s, before = operator.cpu_s(), await _account(operator)
    await asyncio.sleep(IDLE_S)
    after = await _account(operator)
    return {
        "idle_cpu_share": (operator.cpu_s() - cpu_s) / IDLE_S,
        "idle_reconciles_per_s": (after["reconciles"] - before["reconciles"]) / IDLE_S,
    }


async def _quiet(seen: Seen) -> None:
    """Until nothing has changed for a while; no longer than QUIET_LIMIT_S."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(QUIET_LIMIT_S):
            while await _changes_soon(seen):
                pass


async def _changes_soon(seen: Seen) -> bool:
    seen.changed.clear()
    try:
        return await asyncio.wait_for(seen.changed.wait(), QUIET_S)
    except TimeoutError:
        return False


async def _change(surroundings: Cluster, operator: Program, applied: Applied, wish: Wish) -> Json:
    """Specs change one after the other, ten in a second; each becomes a new revision."""
    chosen = random.Random(wish.seed).sample(fleet.keys(wish.size), min(wish.changes, wish.size))
    cpu_s, began = operator.cpu_s(), time.monotonic()
    writes = [asyncio.create_task(_write(surroundings, applied, key, number)) for number, key in enumerate(chosen, 1)]
    await asyncio.gather(*writes)
    spent_s = operator.cpu_s() - cpu_s, time.monotonic() - began
    deadline = time.monotonic() + APPLY_LIMIT_S
    while applied.waited and time.monotonic() < deadline:
        applied.done.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(applied.done.wait(), LOOK_S)
    return {
        "changes": len(chosen),
        "unanswered_changes": len(applied.waited),
        "apply_s": sorted(applied.taken_s),
        "changing_cpu_share": spent_s[0] / spent_s[1] if chosen else 0.0,
    }


async def _analyze(surroundings: Cluster, operator: Program, seen: Seen, wish: Wish) -> Json:
    """A hundred analyses, once all have begun: what is written in a minute, and what it costs.

    Raises:
        TimeoutError: they did not begin in time.
    """
    await asyncio.wait_for(seen.all_settled.wait(), COLD_LIMIT_S)
    chosen = fleet.keys(wish.size)[: analyses.ANALYSES]
    for number, key in enumerate(chosen):
        await surroundings.client.patch(MODEL_DEPLOYMENTS, *key, analyses.rollout(number))
    async with asyncio.timeout(COLD_LIMIT_S):
        while any(not analyses.is_analyzed(seen.objects[key]["status"]) for key in chosen):
            operator.check()
            await asyncio.sleep(LOOK_S)
    cpu_s, before, began = operator.cpu_s(), await _account(operator), time.monotonic()
    await asyncio.sleep(analyses.MEASURED_S)
    after, seconds = await _account(operator), time.monotonic() - began
    still = sum(analyses.is_analyzed(seen.objects[key]["status"]) for key in chosen)
    counts = analyses.writes(before["calls"], after["calls"])
    return analyses.measured(still, counts, operator.cpu_s() - cpu_s, seconds)


async def _write(surroundings: Cluster, applied: Applied, key: Key, number: int) -> None:
    await asyncio.sleep(number / RATE_PER_S)
    applied.waited[key] = time.monotonic()
    await surroundings.client.patch(MODEL_DEPLOYMENTS, *key, fleet.change(number))


async def _account(operator: Program) -> Json:
    """What the operator's own metrics count: reconciles, and calls of the API by verb and resource."""
    operator.check()
    async with aiohttp.ClientSession() as calls, calls.get(f"{operator.admin_url}/metrics") as answer:
        page = await answer.text()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    made = {
        f"{sample.labels['verb']} {sample.labels['resource']}": int(sample.value)
        for sample in samples
        if sample.name == "slipway_operator_api_calls_total"
    }
    done = sum(int(sample.value) for sample in samples if sample.name == "slipway_operator_reconcile_total")
    return {"reconciles": done, "calls": made, "calls_total": sum(made.values())}
