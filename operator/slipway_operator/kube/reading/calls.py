"""Receives from each gateway which ModelDeployments to reconcile at once: one long poll per gateway.

Reasons: a request came for a sleeping ModelDeployment; its requests began or ceased to be served; or its last
endpoint is gone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial

import aiohttp

from slipway_contracts.gateway_report import read_calls
from slipway_operator.api.objects import ObjectKey
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.reading.gateways import Gateways
from slipway_process.supervisor import OnFailure, Supervisor

LOOK_S = 2.0  # between two lists of gateways
PAUSE_S = 0.1  # between two polls, whatever a gateway responds
RETRY_S = 2.0
TIMEOUT_S = 40.0  # a gateway responds after 20 s at the latest

log = logging.getLogger(__name__)


class Calls:
    """Queues the ModelDeployments that gateways report, because clients wait for their reconcile.

    No report is lost: a gateway repeats it until the operator received it, and reconciles poll gateways too.
    """

    def __init__(
        self,
        gateways: Gateways,
        session: aiohttp.ClientSession,
        look_at: Callable[[ObjectKey], None],
        tasks: Supervisor,
        namespaces: Collection[str] = (),
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`tasks`: has a task for each gateway. `namespaces`: the served ones; empty means all.

        `changed`: gateways came, left, or changed readiness.
        """
        self._tasks = tasks
        self._gateways, self._session, self._changed = gateways, session, changed
        self._look_at, self._namespaces = look_at, frozenset(namespaces)

    async def run(self) -> None:
        """Poll every gateway until cancelled."""
        listening: dict[str, asyncio.Task[None]] = {}
        known: frozenset[tuple[str, bool]] | None = None
        try:
            while True:
                found = await self._found(known or ())
                if known is not None and found != known:
                    self._gateways.forget()
                    self._changed()
                known = found
                urls = {url for url, _ in found}
                for url in listening.keys() - urls:
                    listening.pop(url).cancel()
                for url in urls - listening.keys():
                    listening[url] = self._tasks.start("calls-of-gateway", partial(self._listen, url), OnFailure.SHOW)
                await asyncio.sleep(LOOK_S)
        finally:
            for task in listening.values():
                task.cancel()
            await asyncio.gather(*listening.values(), return_exceptions=True)

    async def _found(self, known: Collection[tuple[str, bool]]) -> frozenset[tuple[str, bool]]:
        """Return URL and readiness of each gateway; `known` when they cannot be listed."""
        try:
            return frozenset((endpoint.url, endpoint.ready) for endpoint in await self._gateways.endpoints())
        except ApiError as error:
            log.warning("gateways cannot be looked for: %s", error)
            return frozenset(known)

    async def _listen(self, url: str) -> None:
        mark = ""
        while True:
            called = await self._poll(url, mark)
            if called is None:
                await asyncio.sleep(RETRY_S)
                continue
            mark, keys = called
            served = [key for key in keys if not self._namespaces or key[0] in self._namespaces]
            if served:
                self._gateways.forget()
            for key in served:
                self._look_at(key)
            await asyncio.sleep(PAUSE_S)

    async def _poll(self, url: str, mark: str) -> tuple[str, list[ObjectKey]] | None:
        """Poll a gateway: return the mark for the next poll and the ModelDeployments to reconcile; None on failure."""
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            request = self._session.get(f"{url}/internal/calls", params={"since": mark}, timeout=limit)
            async with request as response:
                response.raise_for_status()
                report = read_calls(await response.read())
                routes = [route.partition("/") for route in report.routes]
                return report.mark, [(namespace, name) for namespace, _, name in routes]
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None
