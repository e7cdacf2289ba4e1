"""A canary that leaks is rejected by pairs before a client sees it: a real gateway, and the operator's planner.

The planner's cluster is a model. What the gateway routes by is the status that the planner wrote, and what the planner
counts is the gateway's report, both as JSON.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from slipway_gateway.judging.samples import BOUNDS
from slipway_gateway.routing.table import Problem, RevisionEndpoints, build, parse_route
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.model.cluster.observed import Gateway as SeenGateway
from slipway_operator.model.labels import baseline_of
from testkit.until import until_async
from tests.operator.planning.test_analysis import event_message
from tests.support.model_cluster import ModelCluster, healthy, model
from tests.support.model_gateway import ModelGateway
from tests.support.report import as_report

from ..harness import Gateway, Handler, gateway, upstream
from ..test_mirror import saying
from ..test_twins import results
from .test_json_guard import loaded
from .webhooks import HOST, Webhook, reach_loopback

PATH = "/v1/completions"
LEAK, FINE = "my SECRET", "fine"
JSON_WISH = {"response_format": {"type": "json_object"}}


class RealGateway(ModelGateway):
    """A gateway of the model cluster that is a real one. `publish`: has it route by the status that was written."""

    def __init__(self, gate: Gateway) -> None:
        super().__init__("a")
        self._gate = gate

    def seen(self, inflight: dict[str, int], now: datetime) -> SeenGateway:
        routes = as_report(self._gate.balancer.report())
        report = Answer(self.name, True, True, routes, self.incarnation, {**BOUNDS}).about("default", "chat", "u1")
        return replace(report, known_s=1.0)


class Release:
    """A rollout whose gateway is a real one. `urls`: of stable, canary and the baseline pod."""

    def __init__(self, gate: Gateway, world: ModelCluster, urls: tuple[str, str, str]) -> None:
        self._gate, self.world, self._urls = gate, world, urls

    def publish(self) -> None:
        """The gateway has the status and the pods as they are now."""
        status, obj = self.world.parsed(), self.world.obj()
        route = parse_route(obj)
        assert not isinstance(route, Problem), route
        stable, canary = status.stable_revision or "", status.canary_revision or ""
        names = (stable, canary, baseline_of(stable))
        ready = [(name, url) for name, url in zip(names, self._urls, strict=True) if name in self.world.pods]
        listed = [RevisionEndpoints(route.name, name, (url,)) for name, url in ready if self.world.pods[name].ready]
        self._gate.balancer.publish(build([replace(route, replica_sets={})], listed))

    @property
    def shadowed(self) -> bool:
        """Whether the gateway sends pairs."""
        table = self._gate.balancer.published.current
        return table is not None and any(route.twin_shadow for route in table.routes.values())

    def step(self) -> None:
        """The operator reconciles, and the gateway follows, until nothing changes at this moment."""
        for _ in range(3):
            self.world.reconcile()
            self.publish()

    async def until(self, done: Callable[[], bool], request: Callable[[int], Any]) -> None:
        """Clients send requests, while a second passes in the world for each of some, until it is done."""
        for number in range(600):
            await request(number)
            self.world.pass_time(1)
            self.step()
            if done():
                return
        raise AssertionError(f"{self.world.state()}: {self.world.parsed().message}")


def template(event: str) -> dict[str, Any]:
    metric = {"name": "leaks", "kind": "PairedEvent", "event": event, "share": 1.0, "maxExtra": 400}
    return {"minSamples": {"pairs": 20, "warmupSeconds": 0}, "metrics": [metric]}


@asynccontextmanager
async def released(canary: Handler, event: str, guard: dict[str, Any]) -> AsyncIterator[tuple[Gateway, Release]]:
    """A rollout of a canary whose analysis has pairs with this event. `guard`: of the ModelDeployment."""
    hook, fine = Webhook(), '{"a": 1}' if "builtin" in guard else FINE
    async with (
        upstream(saying(fine)) as stable,
        upstream(canary) as tested,
        upstream(saying(fine)) as twin,
        upstream(hook) as webhook,
        gateway() as gate,
    ):
        reach_loopback(gate)
        if "webhook" in guard:
            guard["webhook"] = {"url": f"http://{HOST}:{webhook.url.rpartition(':')[2]}/guard"}
        shadow = {"templates": [{"templateName": "pairs"}], "twinShadow": {"percentage": 100}, "maxDuration": "20m"}
        steps = [{"analysis": shadow}, {"setWeight": 20}, {"pause": {}}]
        strategy = {"canary": {"steps": steps, "baselinePod": True}, "capacity": {"surgeTimeoutSeconds": 20}}
        world = healthy(replicas=4, strategy=strategy, traffic={"guards": [guard]})
        world.templates = {"pairs": template(event)}
        world.rate, world.gateways = 0, [RealGateway(gate)]
        release = Release(gate, world, (stable.url, tested.url, twin.url))
        release.publish()
        table = gate.balancer.published.current
        assert table is not None
        await loaded(gate, next(iter(table.routes.values())).guards)
        world.edit(model=model("v2"))
        yield gate, release


WORDS = {"name": "words", "stages": ["Output"], "webhook": {}, "timeoutMilliseconds": 5000}
JSON = {"name": "json", "stages": ["Output"], "builtin": {"json": {"retries": 0}}}
CASES: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "leaks": (LEAK, "RedactedAnswer", WORDS, True),
    "is blocked": ("VETO", "BlockedAnswer", WORDS, True),
    "writes no JSON": ('{"a": ', "InvalidJSON", JSON, True),
    "is as good": (FINE, "RedactedAnswer", WORDS, False),
}


@pytest.mark.parametrize("kind", CASES)
async def test_a_canary_that_leaks_is_rejected_before_a_client_sees_it(kind: str) -> None:
    says, event, guard, rejects = CASES[kind]
    async with released(saying(says), event, dict(guard)) as (gate, release):
        seen: list[tuple[int, str, bytes]] = []

        async def request(number: int) -> None:
            wish = JSON_WISH if guard is JSON else {}
            body = {"model": "chat", "prompt": "x", "user": f"user-{number}", **wish}
            was_shadowed, before = release.shadowed, sum(results(gate).values())
            async with await gate.post(body, PATH) as response:
                seen.append((response.status, response.headers.get("X-Slipway-Revision", ""), await response.read()))
            if was_shadowed:
                await until_async(lambda: sum(results(gate).values()) > before)

        await release.until(lambda: release.world.state() in ("Aborted", "Paused"), request)
        if not rejects:
            assert "prompts answered twice" in event_message(release.world, "AnalysisRunSuccessful")
            return
        assert release.world.state() == "Aborted"
        assert "on canary alone, 0 on its twin alone" in event_message(release.world, "AnalysisRunFailed")
        stable = release.world.parsed().stable_revision
        assert {(status, revision) for status, revision, _ in seen} == {(200, stable)} and len(seen) >= 5
        assert not any(says.encode() in text for _, _, text in seen)
