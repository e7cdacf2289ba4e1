"""A hundred analyses at once: what the operator writes for them in a minute.

Their counters come through the gateway's own report: a proxy in front of its admin port adds requests to each route
that is split, so that every reading has new counts. All else, weights and their acknowledgement included, is the
gateway's.
"""

import contextlib
import time
from collections.abc import AsyncIterator

import aiohttp
import msgspec
from aiohttp import web

from bench.operator.fleet import Json
from devcluster.ports import reserve_port
from testkit.world.addresses import own_address

ANALYSES = 100
WEIGHT, MOST_MINUTES = 25, 30
REQUESTS_PER_S = 20
BAD_PER_MILLION = 5_000
MEASURED_S = 60.0
RUNS = "analysisruns"
READS = ("get", "list", "watch")
FORWARDED = ("Authorization", "Content-Type")


def rollout(number: int) -> Json:
    """A patch that begins a new revision, which an analysis of a quarter of the requests judges."""
    step = {
        "analysis": {
            "templates": [{"templateName": "llm-default"}],
            "maxDuration": f"{MOST_MINUTES}m",
            "untilVerdict": False,
        }
    }
    strategy = {"canary": {"steps": [{"setWeight": WEIGHT}, step, {"pause": {}}]}}
    return {"spec": {"model": {"uri": f"file:///opt/slipway/models/analyzed-{number}"}, "strategy": strategy}}


def is_analyzed(status: Json) -> bool:
    """Whether an analysis has begun: the status names its run."""
    rollout_status = status.get("rollout") or {}
    return rollout_status.get("state") == "Analyzing" and bool((rollout_status.get("analysis") or {}).get("run"))


def writes(before: Json, after: Json) -> dict[str, int]:
    """Calls that write, by resource, between two accounts of the operator's calls ("verb resource" to their number)."""
    counts: dict[str, int] = {}
    for call, total in after.items():
        verb, _, resource = call.partition(" ")
        if verb not in READS and (more := total - before.get(call, 0)):
            counts[resource] = counts.get(resource, 0) + more
    return counts


def with_requests(report: Json, begun: dict[tuple[str, int], float], now_s: float) -> Json:
    """The report of a gateway with requests in the newest generation of each route that splits by weight.

    Args:
        report: the body of `/internal/routes`; changed in place.
        begun: when each generation of each route was first seen; new ones are added.
        now_s: seconds, of the clock of `begun`.
    """
    for name, route in report["routes"].items():
        # A route that had no request has no sample yet: it gets the one that its first request would begin.
        weights = {revision: one["weight"] for revision, one in route.get("revisions", {}).items() if one["weight"]}
        samples = route.get("samples") or [{"generation": route.get("generation"), "weights": weights, "revisions": {}}]
        route["samples"], newest = samples, samples[-1]
        if len(newest["weights"]) < 2:
            continue
        seconds = now_s - begun.setdefault((name, newest["generation"]), now_s)
        for revision, weight in newest["weights"].items():
            requests = int(seconds * REQUESTS_PER_S * weight / 100)
            bad = requests * BAD_PER_MILLION // 1_000_000
            counts = {"assigned": requests, "requests": requests, "units": requests}
            newest["revisions"][revision] = counts | {"events": {"bad": bad, "errors": bad}}
    return dict(report)


class AddsRequests:
    """A proxy of a gateway's admin port. `url`: of that port."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._begun: dict[tuple[str, int], float] = {}

    async def serve(self, request: web.Request) -> web.Response:
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        body = await request.read()
        async with (
            aiohttp.ClientSession() as calls,
            calls.request(request.method, self._url + str(request.rel_url), headers=headers, data=body) as response,
        ):
            received = await response.read()
        if request.path == "/internal/routes" and response.status == web.HTTPOk.status_code:
            received = msgspec.json.encode(with_requests(msgspec.json.decode(received), self._begun, time.monotonic()))
        return web.Response(body=received, status=response.status, content_type=response.content_type)


@contextlib.asynccontextmanager
async def adds_requests(url: str) -> AsyncIterator[int]:
    """Runs the proxy on a port of this machine, which is returned."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", AddsRequests(url).serve)
    runner = web.AppRunner(app)
    await runner.setup()
    port = reserve_port()
    try:
        await web.TCPSite(runner, own_address(), port).start()
        yield port
    finally:
        await runner.cleanup()


def measured(analyses: int, counts: dict[str, int], cpu_s: float, seconds: float) -> Json:
    """What is reported of the minute; `counts`: writes by resource."""
    return {
        "analyses": analyses,
        "analysis_run_writes_per_s": counts.get(RUNS, 0) / seconds,
        "analysis_writes_per_s": sum(counts.values()) / seconds,
        "analysis_cpu_share": cpu_s / seconds,
        "analysis_writes": counts,
    }
