"""Composition root: settings → backends → source of routes → API and admin ports → drain."""

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
import uuid
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version

from aiohttp import http_parser, web

from slipway_process import logs

from .balancing.failsafe import CutOffRule
from .balancing.failsafe_state import FailsafeSettings
from .balancing.load_balancer import LoadBalancer
from .balancing.outlier import OutlierDetection
from .forwarding.proxy import Proxy, max_sessions
from .routing.last_table import LastTable
from .routing.routes_file import FileSource
from .serving.admin import AdminApi, TableSource
from .serving.api import PublicApi
from .serving.listener import ConnectionLimiter, listen
from .serving.operator_token import OperatorToken
from .settings import GatewaySettings
from .telemetry.metrics import GatewayMetrics
from .upstream.session import open_session
from .upstream.warmup import Warmup

log = logging.getLogger("slipway_gateway")
# For error events to reach clients after the drain's time is over.
_FAREWELL_S = 2.0
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 128 << 10  # of mallopt


def main() -> None:
    settings = GatewaySettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy and not settings.allow_pure_python:
        sys.exit(
            "slipway-gateway: aiohttp's C extensions are missing; the pure Python parser is several times slower. "
            "Install an aiohttp wheel, or start with --allow-pure-python."
        )
    _raise_file_limit()
    _return_memory()
    sys.exit(asyncio.run(run(settings)))


def _raise_file_limit() -> None:
    # A stream takes two descriptors: the usual soft limit of 1024 would end at 500 of them.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _return_memory() -> None:
    # By default glibc keeps freed memory once it saw large blocks; this threshold returns large blocks at once.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _version() -> str:
    try:
        return version("slipway")
    except PackageNotFoundError:
        return "unknown"


def _source(settings: GatewaySettings, balancer: LoadBalancer, metrics: GatewayMetrics, last: LastTable) -> TableSource:
    if settings.routes:
        watch = FileSource(settings.routes, balancer.publish)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watch.reload)
        return watch
    # Imported here: the client of Kubernetes costs 60 MB that a gateway with a file does not need.
    from .routing.cluster import ClusterSource

    names = (settings.own_namespace, settings.names_configmap)
    return ClusterSource(settings.kubeconfig, settings.namespaces, last.publish, metrics, names)


def _outlier_detection(settings: GatewaySettings) -> OutlierDetection:
    return OutlierDetection(**{field.name: getattr(settings, field.name) for field in fields(OutlierDetection)})


async def run(settings: GatewaySettings) -> int:
    metrics = GatewayMetrics(_version())
    rule = CutOffRule(settings.cut_off_failures, settings.cut_off_after_s, settings.cut_off_cooldown_s)
    failsafe = FailsafeSettings(rule, settings.failsafe_ttl_s)
    incarnation = uuid.uuid4().hex
    balancer = LoadBalancer(
        metrics,
        failsafe,
        hung_after_s=settings.hung_after_s,
        incarnation=incarnation,
        outlier_detection=_outlier_detection(settings),
        max_sessions=max_sessions(settings),
    )
    async with open_session(settings) as session:
        edge = PublicApi(settings, balancer, Proxy(settings, balancer, metrics, session), metrics)
        # A file of routes is its own memory.
        last = LastTable(
            "" if settings.routes else settings.state_dir, settings.state_max_age_s, balancer.publish, metrics
        )
        source = _source(settings, balancer, metrics, last)
        token = OperatorToken(settings.operator_token_file)
        admin = AdminApi(edge, balancer, metrics, source, incarnation, token, last)
        admin_runner = await listen(admin.app(), settings.admin_host, settings.admin_port, settings)
        door = edge.door()
        runner = await listen(edge.app(), settings.host, settings.port, settings, door)
        log.info("listening", extra={"api": runner.addresses, "admin": admin_runner.addresses})
        routing = asyncio.create_task(source.run())
        warmup = Warmup(session, settings.warm_connections, asyncio.get_running_loop().time)
        warming = asyncio.create_task(warmup.run(balancer))
        keeping = asyncio.create_task(last.run())
        try:
            return await Shutdown(settings, edge, door).wait(runner, routing)
        finally:
            for task in (routing, warming, keeping):
                task.cancel()
            await asyncio.gather(routing, warming, keeping, return_exceptions=True)
            await admin_runner.cleanup()


class Shutdown:
    """The end of the process: the first signal drains, the second one exits now."""

    def __init__(self, settings: GatewaySettings, edge: PublicApi, door: ConnectionLimiter) -> None:
        self._settings = settings
        self._edge = edge
        self._door = door
        self._stop_signal = asyncio.Event()
        self._delay_s = settings.drain_delay_s
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, settings.drain_delay_s)
        # Ctrl-C at a terminal: no load balancer has to remove this gateway first.
        loop.add_signal_handler(signal.SIGINT, self._signalled, 0.0)

    def _signalled(self, delay_s: float) -> None:
        if self._stop_signal.is_set():
            log.warning("second signal: exiting now")
            os._exit(1)
        self._delay_s = delay_s
        self._edge.draining = True
        self._stop_signal.set()

    async def wait(self, runner: web.AppRunner, routing: asyncio.Task[None]) -> int:
        signalled = asyncio.create_task(self._stop_signal.wait())
        await asyncio.wait({signalled, routing}, return_when=asyncio.FIRST_COMPLETED)
        if routing.done():
            signalled.cancel()
            log.critical("the source of routes ended", exc_info=routing.exception())
            self._edge.draining = True
        await self._drain(runner)
        return int(routing.done())

    async def _drain(self, runner: web.AppRunner) -> None:
        log.info("draining", extra={"running": self._edge.running, "delay_s": self._delay_s})
        await self._edge.stop_mirroring()
        await asyncio.sleep(self._delay_s)
        for site in list(runner.sites):
            await site.stop()
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await self._door.drain()
        except TimeoutError:
            log.warning("drain timeout: requests are cut", extra={"running": self._edge.running})
            self._edge.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._edge.idle()
        await runner.cleanup()
        log.info("drained")


if __name__ == "__main__":
    main()
