"""Which endpoints have a spare: another one of their revision that serves, should they end."""

from collections.abc import Collection

from ..routing.table import Route, RouteTable, base_revision


class Spares:
    """Endpoints that did not answer when they were last tried, and what follows for the others of their revision."""

    def __init__(self) -> None:
        self._down: set[str] = set()

    def follow(self, table: RouteTable) -> None:
        """Adopts a new table: an endpoint that left it is ready when it comes back."""
        if self._down:
            self._down &= {url for urls in table.endpoints.values() for url in urls}

    def failed(self, url: str) -> None:
        """The endpoint took no connection, ended one, or answered that it takes no requests."""
        self._down.add(url)

    def answered(self, url: str) -> None:
        self._down.discard(url)

    def without(self, table: RouteTable, route: Route, risked: Collection[str]) -> set[str]:
        """The ready endpoints of a route that have no spare. `risked`: those that may end soon, and so are no spares.

        A revision that consists of one pod never has a spare, so its endpoint is not among them.
        """
        found: set[str] = set()
        for revision in {base_revision(name) for name in table.revisions(route)}:
            ready, unready = table.pods(route, revision)
            if len(ready) + len(unready) == 1 and route.replicas <= 1:
                continue
            spare = [url for url in ready if url not in self._down and url not in risked]
            if len(spare) < 2:
                found.update(spare or ready)
        return found
