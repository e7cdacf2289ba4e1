"""A gateway and upstream servers in one process, all on real loopback sockets."""

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from devcluster.ports import reserve_port
from slipway_contracts.route_table import Backend
from slipway_gateway.assembly.forwarding import caches_of, forwarding_of
from slipway_gateway.assembly.plane import join_lane
from slipway_gateway.assembly.stores import (
    access_log_of,
    admission_of,
    experiments_of,
    generation_log_of,
    jobs_of,
    shared_stores,
)
from slipway_gateway.assembly.streams import app_of
from slipway_gateway.authentication.authenticator import Authenticator
from slipway_gateway.authentication.issuers import IssuerKeys
from slipway_gateway.authentication.known_tenants import KnownTenants
from slipway_gateway.authentication.service_accounts import ServiceAccountTokens
from slipway_gateway.authentication.token_review import TokenReview
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.caching.caches import ResponseCaches
from slipway_gateway.external.keys import ReadKey
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.ledger.store import LedgerStore
from slipway_gateway.ledger.writer import Ledger
from slipway_gateway.limits.budget import MemoryBudget
from slipway_gateway.plane.port import PlanePort, plane_port
from slipway_gateway.routing.table import RevisionEndpoints, Route, RouteTable, build
from slipway_gateway.serving.admin import AdminApi
from slipway_gateway.serving.admission import Admission
from slipway_gateway.serving.api import PublicApi
from slipway_gateway.serving.listener import listen
from slipway_gateway.serving.operator_token import OperatorToken
from slipway_gateway.serving.tls import server_tls
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.sharing.ready_gateways import ReadyGateways
from slipway_gateway.telemetry.access_log import AccessLog
from slipway_gateway.telemetry.inference_log import InferenceLog
from slipway_gateway.telemetry.metrics import GatewayMetrics, RequestRecord
from slipway_gateway.telemetry.tracing import Traces
from slipway_gateway.token_streams.streams import TokenStreams
from slipway_gateway.upstream.internal_tls import internal_tls
from slipway_gateway.upstream.session import open_session
from tests.support import certificates

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Upstream:
    """A model server with the handler of a test; it records the requests that it gets."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._runner: web.AppRunner | None = None
        self.url, self.port = "", 0
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.cancelled = 0
        self.finished = 0

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        try:
            answer = await self._handler(request)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            raise
        self.finished += 1
        return answer

    async def start(self, host: str, context: ssl.SSLContext | None = None) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"https://{certificates.HOST}:{self.port}" if context else f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
            self._runner = None


@dataclass
class Gateway:
    """One gateway; `route` sets its table, the rest are ways to look at it."""

    edge: PublicApi
    balancer: LoadBalancer
    budget: MemoryBudget
    metrics: GatewayMetrics
    runner: web.AppRunner
    url: str
    admin_url: str
    client: aiohttp.ClientSession
    upstreams: aiohttp.ClientSession
    known: KnownTenants
    admission: Admission
    ledger: Ledger
    caches: ResponseCaches
    streams: TokenStreams
    plane: PlanePort | None = None
    generation: int = 0
    counted: dict[tuple[str, ...], float] = field(default_factory=dict)

    def route(self, *revisions: tuple[str, int, list[str]], model: str = "chat") -> None:
        self.generation += 1
        self.balancer.publish(table(self.generation, *revisions, model=model))

    async def post(
        self, body: Any = None, path: str = "/v1/chat/completions", **options: Any
    ) -> aiohttp.ClientResponse:
        payload = {"model": "chat"} if body is None else body
        options = ({"data": payload} if isinstance(payload, bytes) else {"json": payload}) | options
        return await self.client.post(self.url + path, **options)

    def held(self) -> int:
        """Requests that wait for an endpoint."""
        return int(self.metrics.registry.get_sample_value("slipway_gateway_held_requests") or 0)

    def outcomes(self) -> dict[str, int]:
        """Requests by outcome."""
        found: dict[str, int] = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == "slipway_gateway_requests_total":
                    found[sample.labels["outcome"]] = found.get(sample.labels["outcome"], 0) + int(sample.value)
        return found


def table(generation: int, *revisions: tuple[str, int, list[str]], model: str = "chat") -> RouteTable:
    name = f"default/{model}"
    backends = tuple(Backend(revision, weight) for revision, weight, _ in revisions)
    route = Route(name, "uid", model, "2026-01-01T00:00:00Z", generation, "salt", backends)
    return build([route], [RevisionEndpoints(name, revision, tuple(urls)) for revision, _, urls in revisions])


class CountingMetrics(GatewayMetrics):
    """Counts requests by their ids too; those of pairs that were forgotten stay."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.ended: Counter[tuple[str, str]] = Counter()
        self._in_lane_ended = 0

    def fast(self) -> int:
        """Requests that the fast lane of the data plane ended."""
        return int(self._in_lane_ended)

    def served_in_lane(self, counts: Any) -> None:
        self._in_lane_ended += counts.ok + counts.left
        super().served_in_lane(counts)

    def observe(self, record: RequestRecord, now: float) -> None:
        self.ended[record.id, record.outcome] += 1
        super().observe(record, now)


def check_lines(lines: Counter[tuple[str, str]], metrics: CountingMetrics) -> None:
    """Checks that each request has one line in the access log, whichever lane ended it."""
    in_python = Counter({key: count for key, count in lines.items() if key in metrics.ended})
    assert in_python == metrics.ended, "each request of Python has one line"
    in_lane = lines - in_python
    assert max(in_lane.values(), default=1) == 1, "each request of the fast lane has one line"
    assert in_lane.total() == metrics.fast(), "and no other has one"


class Lines:
    """Lines of an access log, in memory: every test of the gateway checks that each request has one."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()

    def put(self, owner: str, line: bytes) -> None:
        fields = json.loads(line)
        self.ended[fields["request_id"], fields["outcome"]] += 1

    async def close(self) -> None:
        pass


class NoSource:
    """A gateway whose tables come from the test."""

    waiting_for = "the test"

    async def run(self) -> None:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def service_accounts(settings: GatewaySettings, metrics: GatewayMetrics) -> AsyncIterator[ServiceAccountTokens]:
    """As the process has it, where an audience is set."""
    review = TokenReview(settings.kubeconfig, settings.token_review_audience)
    clock = asyncio.get_running_loop().time
    accounts = ServiceAccountTokens(review.review, settings.token_review_audience, metrics, clock)
    try:
        yield accounts
    finally:
        await accounts.close()
        await review.close()


@contextlib.asynccontextmanager
async def gateway(
    tenants: Iterable[KnownTenant] | None = (),
    pepper: bytes = b"",
    gateways: ReadyGateways | None = None,
    traces: Traces | None = None,
    read_key: ReadKey | None = None,
    **changes: Any,
) -> AsyncIterator[Gateway]:
    # All of a test runs in one thread, which is busy: that alone may keep no request from being mirrored.
    alone: dict[str, Any] = {"hold_timeout_s": 0.3, "host": "127.0.0.1", "port": 0, "mirror_max_cpu_percentage": 100}
    settings = GatewaySettings(**(alone | changes))
    metrics = CountingMetrics("test")
    balancer = LoadBalancer(metrics, hung_after_s=settings.hung_after_s)
    async with (
        open_session(settings, internal_tls(settings, metrics)) as session,
        aiohttp.ClientSession() as client,
        service_accounts(settings, metrics) as accounts,
    ):
        ledger = Ledger(LedgerStore(settings.ledger_url.get_secret_value() or "sqlite://"), metrics)
        shared = shared_stores(settings, metrics, ledger)
        experiments = experiments_of(settings, balancer, metrics, shared.exposures)
        forwarding = forwarding_of(settings, balancer, metrics, session, InferenceLog(), experiments, read_key)
        admission = admission_of(metrics, ledger, balancer, gateways or ReadyGateways(), shared)
        known = KnownTenants(lambda: pepper, admission.tenants_changed)
        if tenants is not None:
            known.publish(tenants)
        issuers = IssuerKeys(asyncio.get_running_loop().time, settings.oidc_ca_file)
        reviews, verifies = accounts if accounts.audience else None, bool(settings.tls_client_ca_file)
        authenticator = Authenticator(settings.auth_mode, known, metrics, issuers, reviews, verifies_clients=verifies)
        running = [
            asyncio.create_task(one.run())
            for one in (*shared.tasks.values(), forwarding.twins if settings.twin_max_inflight else None, experiments)
            if one
        ]
        lines = Lines()
        caches = caches_of(settings, balancer, metrics, forwarding, shared.responses)
        generations = generation_log_of(settings, metrics, balancer)
        edge = PublicApi(
            settings,
            balancer,
            forwarding,
            metrics,
            authenticator,
            admission,
            access_log=AccessLog(lines) if settings.access_log == "off" else access_log_of(settings, metrics),
            jobs=jobs_of(settings, session, balancer),
            traces=traces,
            caches=caches,
            generations=generations,
        )
        admin = AdminApi(
            edge, balancer, metrics, NoSource(), "incarnation", OperatorToken(settings.operator_token_file)
        )
        plane = plane_port(settings, metrics)
        join_lane(settings, plane, metrics, balancer, forwarding, edge, authenticator)
        tls = server_tls(settings, metrics)
        app, streams = app_of(edge, settings, metrics)
        runner = await listen(app, "127.0.0.1", 0, settings, edge.door(), tls, plane=plane)
        if plane:
            running.append(asyncio.create_task(plane.run()))
        admin_host, scheme = settings.admin_host or "127.0.0.1", "https" if settings.tls_cert_file else "http"
        admin_runner = await listen(admin.app(), admin_host, 0, settings)
        url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
        admin_url = f"http://{admin_host}:{admin_runner.addresses[0][1]}"
        try:
            yield Gateway(
                edge,
                balancer,
                forwarding.budget,
                metrics,
                runner,
                url,
                admin_url,
                client,
                session,
                known,
                admission,
                ledger,
                caches,
                streams,
                plane,
            )
        finally:
            await client.close()
            await issuers.close()
            await edge.stop_mirroring()
            await runner.cleanup()
            await admin_runner.cleanup()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await ledger.close_down()
            await experiments.close()
            for closed in (*shared.stores, forwarding.guards, forwarding.external, edge.access_log, generations):
                await closed.close()
        if settings.access_log == "off":
            check_lines(lines.ended, metrics)


@contextlib.asynccontextmanager
async def upstream(
    handler: Handler, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> AsyncIterator[Upstream]:
    server = Upstream(handler)
    await server.start(host, context)
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def raw_upstream(*writes: bytes, abort: bool = True) -> AsyncIterator[str]:
    """A server that reads a request's head, writes these bytes, and dies."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                for part in writes:
                    writer.write(part)
                    await writer.drain()
                    # The bytes must leave before the reset discards them.
                    await asyncio.sleep(0.05)
        finally:
            if abort:
                writer.transport.abort()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        # A gateway that leaves at once must not leave a server behind that the loop ends with.
        await asyncio.wait([task for task in serving if task], timeout=1) if serving else None


async def until_quiet(reader: asyncio.StreamReader, turns: int = 25) -> bytes:
    """All that comes until the connection is closed, or nothing came for some turns of the event loop.

    Turns and no seconds: client, gateway and upstream share this loop, and on a busy machine it may stand still for
    longer than any pause.
    """
    came, quiet = b"", 0
    while quiet < turns:
        try:
            async with asyncio.timeout(0.02):
                piece = await reader.read(65536)
        except TimeoutError:
            quiet += 1
            continue
        except ConnectionError:
            break
        if not piece:
            break
        came, quiet = came + piece, 0
    return came


@contextlib.asynccontextmanager
async def fixed_response_upstream(response: bytes) -> AsyncIterator[str]:
    """A server that answers each request with these bytes, and lives on: the gateway closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(response)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def drop(writer: asyncio.StreamWriter) -> None:
    """Closes a raw connection the rude way, and waits until it is closed."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def refused_url() -> str:
    """An address where no process listens, now or later."""
    return f"http://127.0.0.1:{reserve_port()}"


async def echo(request: web.Request) -> web.StreamResponse:
    return web.json_response({"path": request.path_qs, "body": (await request.read()).decode("utf-8", "replace")})


def answering(status: int, **headers: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "refused by upstream"}}, status=status, headers=headers)

    return answer


def streaming(events: int, gap_s: float = 0.0) -> Handler:
    async def stream(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await out.prepare(request)
        for n in range(events):
            await out.write(b'data: {"n": %d}\n\n' % n)
            await asyncio.sleep(gap_s)
        await out.write(b"data: [DONE]\n\n")
        return out

    return stream
