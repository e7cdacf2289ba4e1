"""Pages of metrics of a small busy cluster, by the registries of its components.

In a `tick` requests end, tokens are used, a line of a batch is done. Model pods have the page of our own server, and a
GPU the series of DCGM's exporter, which does not run here.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import generate_latest

from slipway_contracts.route_table import Backend, Traffic
from slipway_contracts.service_levels import ServiceLevels
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.quotas.usage import Usage
from slipway_gateway.routing.table import Route, build
from slipway_gateway.telemetry.metrics import GatewayMetrics, RequestRecord
from slipway_jobs.telemetry import JobsMetrics
from slipway_operator.api.v1alpha1.status import (
    Condition,
    ObjectiveStatus,
    Phase,
    Rollout,
    ServiceLevelStatus,
    State,
    Status,
)
from slipway_operator.model.cluster.cost import RevisionPods
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.telemetry import revisions
from slipway_operator.telemetry.metrics import Metrics
from slipway_server.metrics import ServerMetrics

KEY = ("team", "chat")
GPU = 'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",exported_namespace="team",exported_pod="chat-r1-a"}} {percent}\n'
TICK_S = 0.25


class Pages:
    """The pages by path. `healthy`: nothing in them is a problem."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._gateway, self._jobs, self._server = GatewayMetrics("1"), JobsMetrics(), ServerMetrics("chat")
        self._operator = Metrics("1", {"nvidia.com/gpu": 2.5})
        self._ticks = 0
        levels = ServiceLevels(800, 60, 2000, True)
        backends = (Backend("r2", 25), Backend("r1", 75))
        self._balancer = LoadBalancer(self._gateway)
        self._balancer.publish(build([Route("team/chat", "u", "chat", backends=backends, slo=levels)], ()))
        self._operator.follow_engines(self._rows)
        self._operator.leads(True)
        self._declare()

    def _declare(self) -> None:
        now, objectives = datetime.now(UTC), ("ttftP95", "itlP95", "latencyP99", "availability")
        slo = ServiceLevelStatus(now, tuple(ObjectiveStatus(name, 99.0, 1000, 2, 0.8) for name in objectives))
        conditions = (Condition("EngineMetricsAvailable", "Unknown", "Starting", "", now),)
        status = Status(
            phase=Phase.PROGRESSING,
            traffic=Traffic(1, "chat", "s", (Backend("r2", 25), Backend("r1", 75))),
            rollout=Rollout(State.SHIFTING, "r2", 1, step_started_at=now),
            slo=slo,
            conditions=conditions,
        )
        self._operator.rollouts.show(KEY, status)
        resources = Resources(accelerator=("nvidia.com/gpu", 1))
        pods = [RevisionPods(name, (f"chat-{name}-a",), resources) for name in ("r1", "r2")]
        self._operator.costs.show(KEY, pods)
        self._operator.tenants.show({"team-a": {"day": 0.2, "month": 0.5}})

    def _rows(self) -> Iterator[revisions.EngineRow]:
        names = (*revisions.GAUGES, *(f"{name}" for name in revisions.COUNTERS))
        for revision in ("r1", "r2"):
            shares = dict.fromkeys(names, 0.5) | dict.fromkeys(revisions.COUNTERS, 100.0 * self._ticks)
            yield (*KEY, revision, shares)

    def tick(self) -> None:
        """A moment passes: what grows grows."""
        self._ticks += 1
        gateway, jobs = self._gateway, self._jobs
        for revision, share in (("r1", 30), ("r2", 10)):
            for _ in range(share):
                self._request(revision)
            gateway.first_attempt("chat", revision, ("truncated",), 0.02)
            gateway.mirrored("chat", revision, "same")
            gateway.paired("chat", revision, "equal")
            gateway.rated("chat", revision, "correct")
            gateway.inflight_changed("chat", revision, 0)
        gateway.tokens_used("team-a", "chat", Usage(100, 20, 10))
        gateway.quota_refused("team-a", "requests")
        gateway.authenticated("key", "ok")
        self._operator.reconciled("ok", 0.01)
        gateway.memory_budget.set(1e9)
        gateway.memory_held.set(1e7)
        self._server._prefix_queries.inc(100)
        self._server._prefix_hits.inc(40)
        jobs.lines.labels("completed").inc()
        jobs.webhooks.labels("delivered").inc()
        jobs.seconds.observe(0.3)
        jobs.waiting.set(3)

    def _request(self, revision: str) -> None:
        now = time.monotonic()
        record = RequestRecord("id", "id", now - 0.5, "chat", "team/chat", revision, stream=True)
        record.end("ok", 200)
        record.first_byte, record.itl_s = now - 0.4, 0.02
        self._gateway.observe(record, now)
        self._balancer.objectives.ended(record, now)

    def of(self, path: str) -> bytes:
        """One page."""
        made: dict[str, Callable[[], bytes]] = {
            "/operator": lambda: generate_latest(self._operator.registry),
            "/gateway": self._gateway.render,
            "/jobs": self._jobs.page,
            "/server": self._server.render,
            "/dcgm": lambda: GPU.format(percent=60).encode(),
        }
        return made[path]()


PATHS = {
    "/operator": {"pod": "operator"},
    "/gateway": {"pod": "gateway-a"},
    "/jobs": {"pod": "jobs"},
    "/server": {"namespace": "team", "pod": "chat-r1-a", "name": "chat", "revision": "r1"},
    "/dcgm": {"namespace": "gpu", "pod": "dcgm"},
}


@contextmanager
def served() -> Iterator[int]:
    """The port at which the pages are while time passes."""
    pages, over = Pages(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.of(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    def live() -> None:
        while not over.wait(TICK_S):
            pages.tick()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)), threading.Thread(target=live)]
    for thread in threads:
        thread.start()
    try:
        yield server.server_address[1]
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()
