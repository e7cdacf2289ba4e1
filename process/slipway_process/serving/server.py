"""What all servers have around their routes: a guard of every request, start, drain and end, whatever computes."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from slipway_process import collector, logs
from slipway_process.network.http_server import HttpRunner
from slipway_process.serving.errors import HttpError, is_inference_protocol
from slipway_process.serving.metrics import RequestMetrics
from slipway_process.serving.probes import Commands, Health, ProbeServer, Profiles
from slipway_process.serving.restarts import EngineError
from slipway_process.serving.settings import ServingSettings
from slipway_process.serving.tls import check_client, listener_context
from slipway_process.serving.tracing import Tracing
from slipway_process.supervisor import OnFailure, Supervisor

log = logging.getLogger("slipway.http")

OUTCOME = web.RequestKey("outcome", str)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOOP_BEAT_S = 1.0
REQUEST_ID_CHARACTERS = 128  # in the log
IDLE_S = 75.0  # for a connection without a request, or with the beginning of one; longer than a gateway keeps its own
ERROR_EVENTS_S = 2.0  # for error events to reach clients after the engine died


class GuardedService(Protocol):
    """What the guard must know of a service."""

    @property
    def metrics(self) -> RequestMetrics: ...

    @property
    def health(self) -> Health: ...

    @property
    def tracing(self) -> Tracing: ...


class ComputeBackend(Protocol):
    """What computes: a process beside this one."""

    def end_streams(self, reason: str) -> None: ...

    def stop(self) -> None: ...


class Guard:
    """Counts each API request once by its outcome, and turns every exception into a response."""

    def __init__(self, service: GuardedService) -> None:
        self._service = service
        self.needs_certificates = False  # of clients
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def health(self) -> Health:
        return self._service.health

    @web.middleware
    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST":
            return await self._answer(request, handler)
        with logs.about(request_id=request.headers.get("X-Request-Id", "")[:REQUEST_ID_CHARACTERS]):
            return await self._count(request, handler)

    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.in_flight += 1
        self.idle.clear()
        self._service.metrics.arrived()
        resource, status = request.match_info.route.resource, 0
        route = resource.canonical if resource else "*"
        with self._service.tracing.request(request.headers, request.method, route) as ended:
            try:
                response = await self._answer(request, handler)
                if self._service.health.draining:
                    response.force_close()
                status = response.status
                return response
            finally:
                self.in_flight -= 1
                if not self.in_flight:
                    self.idle.set()
                outcome = request.get(OUTCOME, "cancelled")
                self._service.metrics.outcome(outcome)
                ended(outcome, status)

    async def _answer(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if self.needs_certificates:
                check_client(http)
            _check_encoding(http)
            response = await handler(http)
        except HttpError as error:
            return _refuse(http, error)
        except web.HTTPException as error:
            return _refuse(http, HttpError(error.status, _sentence(http, error)))
        except ConnectionError:
            raise  # the client disconnected: still "cancelled"
        except Exception:
            log.exception("a request failed", extra={"path": http.path})
            return _refuse(
                http, HttpError(500, "The server failed on this request.", code="internal_error", outcome="error")
            )
        http.setdefault(OUTCOME, "completed")  # a stream that ended with an error event has its own
        return response


def _check_encoding(http: web.Request) -> None:
    """Refuse a compressed body with 415: it could decompress to more than the limit.

    Clients of the Open Inference Protocol compress: its handlers decompress within the limit.
    """
    if is_inference_protocol(http.path):
        return
    encoding = http.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HttpError(415, "Send the body without Content-Encoding.", param="Content-Encoding")


def _refuse(http: web.Request, error: HttpError) -> web.Response:
    http[OUTCOME] = error.outcome
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return web.Response(
        status=error.status, body=error.encode(http.path), headers=headers, content_type="application/json"
    )


def _sentence(http: web.Request, error: web.HTTPException) -> str:
    if error.status == 404:
        return f"There is no {http.method} {http.path} here."
    if error.status == 405:
        return f"{http.path} does not take {http.method}."
    return error.reason


def shared_routes(service: GuardedService) -> list[web.RouteDef]:
    """Routes of probes and metrics."""

    async def probe(http: web.Request) -> web.Response:
        status, body = service.health.answer(http.path)
        return web.Response(status=status, body=body, content_type="application/json")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=service.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    probes = [web.get(path, probe) for path in ("/healthz", "/readyz", "/health")]
    return [*probes, web.get("/metrics", metrics)]


def complete_routes(routes: Sequence[web.RouteDef]) -> list[web.RouteDef]:
    """These routes and a fallback for everything else. All handle Expect headers, unlike aiohttp's own fallback."""

    async def not_found(http: web.Request) -> web.StreamResponse:
        raise web.HTTPNotFound

    async def wrong_method(http: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(http.method, ())

    paths = dict.fromkeys(route.path for route in routes)
    rest = [*(web.route("*", path, wrong_method) for path in paths), web.route("*", r"/{path:[\s\S]*}", not_found)]
    expecting = {"expect_handler": _expect}
    return [
        web.RouteDef(route.method, route.path, route.handler, {**route.kwargs, **expecting})
        for route in [*routes, *rest]
    ]


async def _expect(http: web.Request) -> web.StreamResponse | None:
    """Answer an Expect header. aiohttp's own handler quotes the header, which fails for bytes that are no text."""
    if http.headers.get("Expect", "").lower() == "100-continue":
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        http.writer.output_size = 0
        return None
    error = HttpError(417, "The only expectation that is met is 100-continue.", param="Expect")
    answer = _refuse(http, error)
    answer.force_close()
    return answer


async def run_server(
    settings: ServingSettings,
    app: web.Application,
    guard: Guard,
    backend: ComputeBackend,
    life: asyncio.Task[None],
    tasks: Supervisor,
    *,
    debug: Profiles | None = None,
    commands: Commands | None = None,
    on_drain: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM and the end of the drain; raise EngineError when `life`, the backend's task, ends first.

    `tasks`: what runs beside it; ended before this returns.
    """
    health = guard.health
    # By default aiohttp does not cancel handlers of clients that disconnected.
    runner = HttpRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=IDLE_S,
        auto_decompress=False,
    )
    tls = listener_context(settings)
    guard.needs_certificates = tls is not None
    await runner.setup()
    site = web.TCPSite(runner, settings.host, settings.port, ssl_context=tls)
    await site.start()
    probes = ProbeServer(health, settings.host, settings.probe_port, debug, commands, tasks.on_restart)
    probes.start()
    log.info("listening", extra={"port": runner.addresses[0][1], "probe_port": probes.port, "tls": tls is not None})
    collector.spare()
    stop = _stop_on_signals()
    tasks.start("beat", partial(_beat, health, tasks))
    tasks.start("collector", collector.collect_when_grown, OnFailure.SHOW)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, life], return_when=asyncio.FIRST_COMPLETED)
        if not life.done():
            on_drain()
            await _drain(settings, health, backend, guard, life)
        if life.done():
            await _wait(guard.idle, ERROR_EVENTS_S)
            await life
    finally:
        stopping.cancel()
        backend.stop()
        await runner.cleanup()
        probes.stop()
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineError):
            await life
        await tasks.close()


async def _drain(
    settings: ServingSettings, health: Health, backend: ComputeBackend, guard: Guard, life: asyncio.Task[None]
) -> None:
    """Refuses new requests and lets running ones finish. At the timeout the rest ends with an error event."""
    health.draining = True
    log.info("draining", extra={"in_flight": guard.in_flight, "timeout_s": settings.drain_timeout_s})
    idle = asyncio.create_task(guard.idle.wait())
    await asyncio.wait([idle, life], timeout=settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
    idle.cancel()
    if guard.in_flight:
        backend.end_streams("The server is shutting down and the time for its last requests is over.")
        await _wait(guard.idle, ERROR_EVENTS_S)
    log.info("drained", extra={"cut_off": guard.in_flight})


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def _beat(health: Health, tasks: Supervisor) -> None:
    """Give the thread of the probes what it answers from."""
    while True:
        health.loop_beat_s = time.monotonic()
        health.failing, health.missing = tasks.trouble, tasks.missing
        await asyncio.sleep(LOOP_BEAT_S)


def _stop_on_signals() -> asyncio.Event:
    """An event that the first signal sets, which starts the drain; a second SIGINT ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if stop.is_set():
            loop.remove_signal_handler(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stop
