"""The end of a gateway: it drains, and what has not ended in time is cut."""

import asyncio
import contextlib
import logging
import os
import signal

from aiohttp import web

from .grpc_api.listener import GrpcServer
from .serving.api import PublicApi
from .serving.listener import ConnectionLimiter
from .settings import GatewaySettings

log = logging.getLogger(__name__)
# For error events to reach clients after the drain's time is over.
_FAREWELL_S = 2.0
# A node under load may send connections here after the delay, and a closed port would refuse them. So it stays open
# until none came for _QUIET_S, and for _LATE_S at most, which the grace period of the chart has room for.
_QUIET_S, _LATE_S = 1.0, 10.0


class Shutdown:
    """The end of the process: the first signal drains, or `stop`; the second signal exits now."""

    def __init__(
        self,
        settings: GatewaySettings,
        edge: PublicApi,
        door: ConnectionLimiter,
        grpc_port: GrpcServer | None,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._edge = edge
        self._door = door
        self._grpc_port = grpc_port
        self._stop = stop
        self._delay_s = settings.drain_delay_s
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, settings.drain_delay_s)
        # Ctrl-C at a terminal: no load balancer has to remove this gateway first.
        loop.add_signal_handler(signal.SIGINT, self._signalled, 0.0)

    def _signalled(self, delay_s: float) -> None:
        if self._edge.draining:
            log.warning("second signal: exiting now")
            os._exit(1)
        self._delay_s = delay_s
        self._edge.draining = True
        self._stop.set()

    async def wait(self, runner: web.AppRunner) -> None:
        await self._stop.wait()
        self._edge.draining = True
        await self._drain(runner)

    async def _drain(self, runner: web.AppRunner) -> None:
        log.info("draining", extra={"running": self._edge.running, "delay_s": self._delay_s})
        await self._edge.stop_mirroring()
        await asyncio.sleep(self._delay_s)
        if self._delay_s:
            await self._quiet()
        for site in list(runner.sites):
            await site.stop()
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.gather(self._door.drain(), *([self._grpc_port.drain()] if self._grpc_port else []))
        except TimeoutError:
            log.warning("drain timeout: requests are cut", extra={"running": self._edge.running})
            self._edge.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._edge.idle()
        if self._grpc_port:
            await self._grpc_port.close()
        await runner.cleanup()
        log.info("drained")

    async def _quiet(self) -> None:
        """Returns when no connection came for a while, or after the longest time."""
        loop = asyncio.get_running_loop()
        began_s, until_s = loop.time(), self._door.came_s + _QUIET_S
        while (rest_s := min(until_s, began_s + _LATE_S) - loop.time()) > 0:
            await asyncio.sleep(rest_s)
            until_s = self._door.came_s + _QUIET_S
        log.info("the port closes", extra={"seconds_after_delay": round(loop.time() - began_s, 1)})
