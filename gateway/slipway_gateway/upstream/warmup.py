"""Keeps a few connections open to revisions without weight, so that the first requests of a raised weight find one."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import aiohttp

from ..balancing.load_balancer import LoadBalancer
from ..routing.table import RouteTable
from .direct import DirectSender

log = logging.getLogger(__name__)

PATH = "/healthz"
# Sooner than an idle connection is closed.
RENEW_S = 10.0
_TIMEOUT_S = 2.0
MAX_ENDPOINTS = 256


def cold(table: RouteTable | None) -> list[str]:
    """Ready endpoints that no request keeps warm: of revisions with no weight now."""
    if table is None:
        return []
    urls: dict[str, None] = {}
    for route in table.routes.values():
        weighted = {backend.revision for backend in route.backends if backend.weight}
        for revision in table.revisions(route):
            if revision not in weighted:
                urls.update(dict.fromkeys(table.urls(route, revision)))
    return list(urls)[:MAX_ENDPOINTS]


class Warmup:
    """`connections` to each cold endpoint, made when it appears and used often enough to stay open."""

    def __init__(self, direct: DirectSender, connections: int, clock: Callable[[], float]) -> None:
        self._direct = direct
        self._connections = connections
        self._clock = clock
        self._due_s: dict[str, float] = {}

    async def run(self, balancer: LoadBalancer) -> None:
        while self._connections:
            await self.renew(cold(balancer.published.current))
            await balancer.published.changed(RENEW_S)

    async def renew(self, urls: Sequence[str]) -> None:
        now_s = self._clock()
        due = [url for url in urls if self._due_s.get(url, now_s) <= now_s]
        self._due_s = {url: now_s + RENEW_S if url in due else self._due_s[url] for url in urls}
        # All at once: each of them takes a connection that no other has.
        await asyncio.gather(*(self._touch(url) for url in due for _ in range(self._connections)))

    async def _touch(self, url: str) -> None:
        # Only the connection matters, not the response.
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                response = await self._direct.get(url, PATH)
                try:
                    while await response.content.readany():
                        pass
                finally:
                    response.close()
        except (aiohttp.ClientError, OSError) as error:
            log.debug("no connection to %s: %s", url, error)
