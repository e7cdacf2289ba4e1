"""The route table in use, and waiting for the next one."""

import asyncio

from ..routing.public_names import PublicRoute
from ..routing.table import Route, RouteTable, equivalent_revisions


class PublishedTable:
    """`current` is None until the first table is published, and after a restored one became too old."""

    def __init__(self) -> None:
        self.current: RouteTable | None = None
        self._by_name: dict[str, Route] = {}  # of `current`
        self._changed = asyncio.Event()

    def publish(self, table: RouteTable | None) -> None:
        self.current = table
        self._by_name = {**table.routes, **table.models} if table else {}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self, timeout_s: float) -> None:
        """Returns when the next table is published, or after `timeout_s` seconds."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    def find(self, model: str) -> Route | None:
        """The route of a model name or of `namespace/name`. A running request finds its route by the latter."""
        return self._by_name.get(model)

    def find_public(self, name: str) -> PublicRoute | None:
        """The ModelRoute that has a public name."""
        return self.current.public.get(name) if self.current else None

    def engine_at(self, url: str) -> str:
        """The engine type of the endpoint at `url`; empty where it is not known."""
        return self.current.engines.get(url, "") if self.current else ""

    def lists(self, model: str, revision: str) -> bool:
        """Whether a model's route lists the revision or an equivalent one, or has endpoints of it."""
        route = self.find(model)
        known = self.current.revisions(route) if self.current and route else []
        return any(name in known for name in equivalent_revisions(revision))

    def has_pod(self, model: str, revision: str, url: str) -> bool:
        """Whether the pod of an endpoint is there, ready or not; False while it is being deleted."""
        route = self.find(model)
        if self.current is None or route is None:
            return False
        ready, unready = self.current.pods(route, revision)
        return url in ready or url in unready

    def urls(self, model: str, *revisions: str) -> tuple[str, ...]:
        """URLs of the ready endpoints of these revisions of a model; empty for an unknown model."""
        route = self.find(model)
        return (
            tuple(url for one in revisions for url in self.current.urls(route, one)) if self.current and route else ()
        )
