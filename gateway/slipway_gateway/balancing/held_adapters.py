"""Which adapters the pods of bases hold, as far as this gateway knows: what they report, and what they refused."""

import time
from collections.abc import Callable, Mapping

from ..routing.adapters import HeldAdapters, bases_of
from ..routing.table import RouteTable

POLL_S = 2.0  # between two reports of one pod
# At least this long between two reports for which the pod's own responses are the reason: these may say anything.
SOON_S = 0.2
# A pod that refused an adapter has it again by a report that is so much later: its loader looks each second.
DISTRUST_S = 1.5
_NOTHING: HeldAdapters = frozenset()


class HeldAdapterReports:
    """`by_url`: what each pod holds. A pod that gives no report keeps its last one: its engine may serve on.

    `wake` is called when there is something to do before the next report is due.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.wake: Callable[[], None] = lambda: None
        self.changed = False  # since the table was published
        self._by_url: dict[str, HeldAdapters] = {}
        self._due_s: dict[str, float] = {}  # of all pods of bases
        self._read_s: dict[str, float] = {}  # when each of them was read last
        self._versions: dict[str, float] = {}  # of engines that say with responses when their adapters change
        self._refused_s: dict[tuple[str, str, str], float] = {}  # by URL, name and revision
        self._digests: dict[str, tuple[int, str]] = {}  # of the tables of adapters, with their generations

    @property
    def by_url(self) -> Mapping[str, HeldAdapters]:
        return self._by_url

    def follow(self, table: RouteTable) -> None:
        """Adopts a new table. Pods are read at once where they are new, or where the table of an adapter changed."""
        urls, now_s = bases_of(table), self._clock()
        digests = {route.name: (route.generation, route.digest) for route in table.routes.values() if route.base}
        changed = {name for name, digest in digests.items() if self._digests.get(name) != digest}
        read_again = {route.base for route in table.routes.values() if route.name in changed}
        self._digests = digests
        for url in self._due_s.keys() - urls:
            del self._due_s[url]
            self._by_url.pop(url, None)
            self._read_s.pop(url, None)
            self._versions.pop(url, None)
        for url in urls:
            base, _ = table.hosts.get(url, ("", ""))
            self._due_s[url] = now_s if base in read_again else self._due_s.get(url, now_s)
        if urls and (read_again or min(self._due_s.values()) <= now_s):
            self.wake()

    def take_due(self) -> list[str]:
        """URLs of the pods to read now; each is due again POLL_S later."""
        now_s = self._clock()
        due = [url for url, due_s in self._due_s.items() if due_s <= now_s]
        self._due_s.update(dict.fromkeys(due, now_s + POLL_S))
        self._read_s.update(dict.fromkeys(due, now_s))
        return due

    def wait_s(self) -> float:
        """Seconds until a pod is due."""
        return max(0.0, min(self._due_s.values(), default=self._clock() + POLL_S) - self._clock())

    def reported(self, url: str, adapters: HeldAdapters) -> None:
        """A pod reported what it holds."""
        if url not in self._due_s:
            return
        since_s = self._clock() - DISTRUST_S
        self._refused_s = {key: at_s for key, at_s in self._refused_s.items() if at_s > since_s}
        held = frozenset(adapter for adapter in adapters if (url, *adapter) not in self._refused_s)
        self.changed |= held != self._by_url.get(url, _NOTHING)
        self._by_url[url] = held

    def refused(self, url: str, name: str, revision: str) -> None:
        """A pod answered that it has no such adapter: it gets no more requests for it until it reports it again."""
        self._refused_s[url, name, revision] = self._clock()
        held = self._by_url.get(url, _NOTHING)
        if (name, revision) in held:
            self._by_url[url] = held - {(name, revision)}
            self.changed = True
        self._soon(url)

    def version_reported(self, url: str, version: float) -> None:
        """An engine reported with a response how often its adapters have changed."""
        if url in self._due_s and self._versions.get(url) != version:
            self._versions[url] = version
            self._soon(url)

    def _soon(self, url: str) -> None:
        if url in self._due_s:
            now_s = self._clock()
            soon_s = max(now_s, self._read_s.get(url, now_s - SOON_S) + SOON_S)
            self._due_s[url] = min(self._due_s[url], soon_s)
            self.wake()
