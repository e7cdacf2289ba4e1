"""Reads from pods which adapters they hold: the report of the loader beside the engine. It is a workload's."""

import asyncio
import logging
import random
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from slipway_contracts.adapters import ADAPTERS_PATH, ADAPTERS_PORT, MAX_REPORT_BYTES, AdapterReport
from slipway_process.network.host_names import shown

from ..balancing.held_adapters import HeldAdapterReports
from ..routing.adapters import HeldAdapters, held

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0  # of one report
PARALLEL = 16
# Of all pods that are due. Those that were not read by then are read after others the next time.
ROUND_S = 4.0
_LIMITS = aiohttp.ClientTimeout(total=TIMEOUT_S)
_DECODER = msgspec.json.Decoder(AdapterReport)


class AdapterReports:
    """Keeps `reports` up to date. `publish` is called when what pods hold has changed.

    `counted` gets the result of each report: ok, unreachable or wrong.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        reports: HeldAdapterReports,
        publish: Callable[[], None],
        counted: Callable[[str], None],
    ) -> None:
        self._session, self._reports, self._publish, self._counted = session, reports, publish, counted
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(PARALLEL)
        self._failing: set[str] = set()
        reports.wake = self._woken.set

    async def run(self) -> None:
        """Reads pods when they are due, until it is cancelled."""
        while True:
            self._woken.clear()
            await self.read_due()
            try:
                async with asyncio.timeout(self._reports.wait_s()):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def read_due(self) -> None:
        """Reads the pods that are due, and publishes the table again if that changed something.

        However many pods of one deployment are silent, those of others wait for PARALLEL of them at most: pods that
        have reported before come first.
        """
        self._publish_change()
        due = sorted(self._reports.take_due(), key=lambda url: url not in self._reports.by_url)
        silent = [url for url in due if url in self._failing]
        again = random.sample(silent, min(len(silent), PARALLEL))
        try:
            async with asyncio.timeout(ROUND_S), asyncio.TaskGroup() as group:
                for url in [url for url in due if url not in self._failing] + again:
                    group.create_task(self._look(url))
        except TimeoutError:
            pass  # what was read counts
        self._publish_change()

    def _publish_change(self) -> None:
        if self._reports.changed:
            self._reports.changed = False
            self._publish()

    async def _look(self, url: str) -> None:
        result, begun = "ok", False
        try:
            async with self._slots:
                begun = True
                self._reports.reported(url, await self._read(url))
        except asyncio.CancelledError:
            if begun:
                self._failing.add(url)
            raise
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            result = "wrong"
            self._log(url, error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            result = "unreachable"
            self._log(url, error)
        if result == "ok":
            self._failing.discard(url)
        self._counted(result)

    async def _read(self, url: str) -> HeldAdapters:
        async with self._session.get(_page(url), timeout=_LIMITS, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_REPORT_BYTES:
                    raise ValueError(f"more than {MAX_REPORT_BYTES} bytes")
        return held(_DECODER.decode(bytes(content)))

    def _log(self, url: str, error: Exception) -> None:
        if url not in self._failing:
            self._failing.add(url)
            log.warning("the adapters of %s are not known: %s", url, error or type(error).__name__)
        if len(self._failing) > 4096:  # pods come and go
            self._failing.clear()


def _page(url: str) -> URL:
    """The address of a pod's report."""
    host = shown(urlsplit(url).hostname or "")
    return URL.build(scheme="http", host=host, port=ADAPTERS_PORT, path=ADAPTERS_PATH)
