"""The gateway: counts each request of its fast lane again, changes weights, and reports what it counted.

    python -m tests.plane.recount.gateway CONFIG

`CONFIG`, JSON: ports of servers, keys of tenants (none: requests need none), seed, ledger. Prints its URL. With a line
of its standard input it drains, waits until the last connection has ended, and prints its report as one line of JSON.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from slipway_contracts.route_table import Backend
from slipway_gateway.fast_lane import lane
from slipway_gateway.fast_lane.recount import Recounter
from slipway_gateway.forwarding import event_relays
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.routing.table import RevisionEndpoints, Route, RouteTable, build
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async
from tests.gateway import harness, tenants

from .mix import BROKEN, MODELS, PLAIN

CHANGE_S = 0.3
WEIGHTS = (0, 1, 10, 50, 90, 99, 100)
DRAIN_S = 120
# A tenant of which requests are refused where some hundred come in a second, and one that is never limited.
LIMITED, FREE = "limited", "free"
_POLICIES = {
    LIMITED: Policy(Limits(requests_per_minute=600, burst_s=1.0), budget=Budget(10**15, 10**15)),
    FREE: Policy(Limits(requests_per_minute=10**9, input_tokens_per_minute=10**12)),
}


class Looks:
    """How many whole responses the fast lane counted, and how many of these Python counted again."""

    def __init__(self) -> None:
        self.fast = self.again = 0
        look, served = Recounter.look, GatewayMetrics.served_in_lane

        def looking(recounter: Recounter, request: Any) -> None:
            self.again += 1
            look(recounter, request)

        def serving(metrics: GatewayMetrics, counts: Any) -> None:
            self.fast += counts.ok
            served(metrics, counts)

        Recounter.look = looking  # type: ignore[method-assign]
        GatewayMetrics.served_in_lane = serving  # type: ignore[method-assign]


def table(generation: int, weight: int, ports: Sequence[int]) -> RouteTable:
    """Two revisions of each model. All models but the broken one share the first ports; one has prefix affinity."""
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    half = len(urls) // 2
    routes, endpoints = [], []
    for model in MODELS:
        name = f"default/{model}"
        own = urls[half:] if model == BROKEN else urls[:half]
        backends = (Backend("r1", 100 - weight), Backend("r2", weight))
        route = Route(name, "uid", model, "2026-01-01T00:00:00Z", generation, f"salt-{model}", backends)
        routes.append(replace(route, prefix_affinity=model == PLAIN))
        middle = len(own) // 2
        endpoints += [
            RevisionEndpoints(name, revision, tuple(some))
            for revision, some in (("r1", own[:middle]), ("r2", own[middle:]))
        ]
    return build(routes, endpoints)


async def change_weights(gate: harness.Gateway, random: Random, ports: Sequence[int]) -> None:
    """Publishes another table again and again."""
    for generation in range(2, sys.maxsize):
        await asyncio.sleep(CHANGE_S)
        gate.balancer.publish(table(generation, random.choice(WEIGHTS), ports))


async def drain(gate: harness.Gateway) -> None:
    """As at SIGTERM: requests that come are served, and the port closes."""
    gate.edge.draining = True
    await asyncio.sleep(0.2)
    for site in list(gate.runner.sites):
        await site.stop()
    open_ = lambda: gate.metrics.registry.get_sample_value("slipway_gateway_connections")  # noqa: E731
    with contextlib.suppress(TimeoutError):
        await until_async(open_, "connections end", DRAIN_S, holds=lambda count: not count)


async def report(gate: harness.Gateway, looks: Looks, drained_s: float) -> dict[str, Any]:
    """All that was counted, once no request runs any more. `drained_s`: when the drain began."""
    assert gate.plane is not None
    gate.plane._take_quiet_news()
    gate.metrics.render()
    await gate.ledger.flush()
    _, rows = await gate.ledger.usage(0, 1 << 40, "")
    samples: dict[str, list[list[Any]]] = {}
    for family in gate.metrics.registry.collect():
        for sample in family.samples:
            if not sample.value or sample.name.endswith(("_bucket", "_created")):
                continue
            name = sample.name.removeprefix("slipway_gateway_")
            samples.setdefault(name, []).append([sample.labels, sample.value])
    routes = msgspec.to_builtins(gate.balancer.report())
    return {
        "metrics": samples,
        "fast": looks.fast,
        "looks": looks.again,
        "ledger": rows,
        "routes": {name: route["revisions"] for name, route in routes.items()},
        "running": gate.edge.running,
        "waiting_prompts": sum(gate.edge.lane.prefixes.known(b"", 0.0)[1].values()) if gate.edge.lane else 0,
        "drained_s": drained_s,
    }


async def main(config: dict[str, Any]) -> None:
    lane.RECOUNT_ONE_IN = event_relays.RECOUNT_ONE_IN = 1
    lane.MAX_RECOUNTS = 50_000
    looks, ports = Looks(), config["ports"]
    settings: dict[str, Any] = {
        "plane": "required",
        "access_log": config["log"],
        "access_log_sample": 0.001,
        "max_connections": 4096,
        "max_connections_per_address": 4096,
        "max_client_percentage": 100,
        "ledger_url": config["ledger"],
        "resume_timeout_s": 1.0,  # also how long a request waits of which an engine may have died
        "auth_mode": "required" if config["keys"] else "off",
    }
    listed = [replace(tenants.tenant(name, key), policy=_POLICIES[name]) for name, key in config["keys"]]
    async with harness.gateway(listed, tenants.PEPPER, **settings) as gate:
        gate.balancer.publish(table(1, 50, ports))
        writing = asyncio.create_task(gate.ledger.run())
        changing = asyncio.create_task(change_weights(gate, Random(config["seed"]), ports))
        print(gate.url, flush=True)
        reading = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        await asyncio.wait([reading, writing, changing], return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            await asyncio.gather(writing, changing)  # one of them failed
        drained_s = time.monotonic()
        await drain(gate)
        for task in (changing, writing):
            task.cancel()
        await asyncio.gather(changing, writing, return_exceptions=True)
        print(json.dumps(await report(gate, looks, drained_s)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
