"""The admin port: /livez, /readyz and /metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str | None]
Answer = Callable[[web.Request], Awaitable[web.Response]]

LAG_LIMIT_S = 5.0
RUN_LIMIT_S = 600.0
_BEAT_S = 0.5


class Pulse:
    """Measures by how many seconds the event loop runs late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat_at = clock()
        self._lag_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._beat_at = self._clock()
            await asyncio.sleep(_BEAT_S)
            self._lag_s = self._clock() - self._beat_at - _BEAT_S

    def check(self) -> str | None:
        """Return None while the event loop is at most LAG_LIMIT_S late, else a sentence about it."""
        lag_s = max(self._lag_s, self._clock() - self._beat_at - _BEAT_S)
        return f"the event loop is {lag_s:.1f} s late" if lag_s > LAG_LIMIT_S else None


def run_check(longest_run_s: Callable[[], float]) -> Check:
    """Return a check that fails when a reconcile has run longer than RUN_LIMIT_S."""

    def check() -> str | None:
        seconds = longest_run_s()
        return f"a reconcile has been running for {seconds:.0f} s" if seconds > RUN_LIMIT_S else None

    return check


def application(
    registry: CollectorRegistry, live: Sequence[Check], ready: Sequence[Check], missing: Callable[[], str] = str
) -> web.Application:
    """Return the admin application. A check returns what is wrong, or None; any failure gives status 503.

    `missing`: what the operator works without, for the text of /readyz; empty when nothing is missing.
    """
    application = web.Application()
    application.router.add_get("/livez", _answer(live))
    application.router.add_get("/readyz", _answer(ready, missing))
    application.router.add_get("/metrics", _metrics(registry))
    return application


async def serve(application: web.Application, port: int) -> web.AppRunner:
    """Listen on all addresses; the caller must clean up the returned runner."""
    # Without keep-alive, so that shutdown does not wait for idle connections of scrapers.
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner


def _answer(checks: Sequence[Check], missing: Callable[[], str] = str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        wrong = [sentence for sentence in (check() for check in checks) if sentence]
        lines = filter(None, [*(wrong or ["ok"]), missing()])
        return web.Response(text="\n".join(lines) + "\n", status=503 if wrong else 200)

    return answer


def _metrics(registry: CollectorRegistry) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer
