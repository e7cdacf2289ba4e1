"""Sessions of a generation as the judge's units, and a bound on the units of one client (pure).

A session sticks to a revision, so all of its requests are one observation: it counts once in each counter. Whether it
counts at all is decided when its first request is assigned, before any outcome is known: a rule that looked at
outcomes would bias the comparison, one that looks at assignments alone only makes it slower.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..wire.request_fields import ALONE

if TYPE_CHECKING:
    from slipway_plane import _native

# Sessions that a generation remembers, some 90 bytes each.
MAX_SESSIONS = 65_536
# Clients that a generation distinguishes. Further ones have no bound: a client with that many identities evades any.
MAX_CLIENTS = 4096
# A client has at most as many units as all others together, or as many as these two allow if that is more: so a
# deployment with one large client and a few small ones is judged too. A client that is the only one has no bound.
FREE_UNITS = 256.0
FREE_UNITS_PER_S = 10.0
# Standard deviations, and units, by which the split of one client's units may miss the weights. Chance alone hardly
# ever misses by that much; a client that chooses its sessions by their side is stopped within a few dozen.
BALANCE_SIGMAS = 5.0
BALANCE_UNITS = 4.0

_FORGOTTEN = 1024  # sessions that are forgotten at once, when there is no room for another

_COUNTS = "counts"
_ENDED = "ended"


class SessionMemory:
    """A limit on the remembered sessions of all `Units`. When it is reached, the largest of them forgets some."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._memories: dict[Units, None] = {}
        self.taken = 0

    def join(self, memory: "Units") -> None:
        self._memories[memory] = None

    def leave(self, memory: "Units") -> None:
        if memory in self._memories:
            del self._memories[memory]
            self.taken -= len(memory)

    def take(self) -> None:
        """Counts one more session, which always has room: at the limit, others are forgotten."""
        if self.taken >= self._limit:
            self.taken -= max(self._memories, key=len).forget(min(_FORGOTTEN, self._limit))
        self.taken += 1


@dataclass(slots=True)
class _Client:
    units: Counter[str] = field(default_factory=Counter)  # by revision
    total: int = 0


class Units:
    """The sessions of one generation of a route.

    Args:
        weights: of the generation, in percent by revision.
        begun_s: when the generation had its first request, in seconds of the caller's clock.
        room: the limit that all generations share.
    """

    def __init__(self, weights: Mapping[str, int], begun_s: float, room: SessionMemory | None = None) -> None:
        self._weights = dict(weights)
        self._begun_s = begun_s
        self._flags: dict[str, int] = {}  # the bit of each name
        self._sessions: dict[int, int] = {}  # the bits of each session
        self._oldest_first: deque[int] = deque()
        self._clients: dict[int, _Client] = {}
        self._total = 0
        self._room = room or SessionMemory()
        self._room.join(self)

    def __len__(self) -> int:
        """Sessions that are remembered."""
        return len(self._oldest_first)

    def forget(self, sessions: int) -> int:
        """Forgets so many sessions, those that came first; returns how many it forgot."""
        gone = min(sessions, len(self._oldest_first))
        for _ in range(gone):
            del self._sessions[self._oldest_first.popleft()]
        return gone

    def end(self) -> None:
        """The generation is no longer reported: its memory is freed."""
        self._room.leave(self)
        self._room = SessionMemory()
        self.forget(len(self))

    def assign(self, revision: str, key: str, client: str, now_s: float) -> tuple[bool, bool]:
        """A request of the session `key` was assigned to a revision.

        Returns: whether it is a new unit, and whether its session counts.
        """
        alone = key.startswith(ALONE)
        if not alone and (known := self._sessions.get(hash(key))) is not None:
            return False, bool(known & self._bit(_COUNTS))
        counts = self._admit(revision, client, now_s)
        if not alone:
            self._remember(hash(key), self._bit(_COUNTS) if counts else 0)
        return counts, counts

    def has(self, key: str) -> bool:
        """Whether a session is remembered."""
        return hash(key) in self._sessions

    def remember(self, key: str) -> None:
        """Remembers a session without a revision. A request without a session is not remembered: it does not return."""
        if not key.startswith(ALONE) and not self.has(key):
            self._remember(hash(key), 0)

    def first_end(self, key: str) -> bool:
        """A request of a session that counts ended: whether it is the first one of the session that did."""
        return self.first(key, _ENDED)

    def first(self, key: str, name: str) -> bool:
        """Sets the mark `name` of a session; returns whether it was not set. A session that was forgotten has none."""
        # The process's own keyed hash: no client can choose sessions that collide.
        session = hash(key)
        known = self._sessions.get(session)
        if known is None:
            return True
        bit = self._bit(name)
        self._sessions[session] = known | bit
        return not known & bit

    def _bit(self, name: str) -> int:
        return self._flags.setdefault(name, 1 << len(self._flags))

    def _admit(self, revision: str, client: str, now_s: float) -> bool:
        found = self._client(client)
        if found is not None:
            if not (self._has_room(found, now_s) and self._balanced(found, revision)):
                return False
            found.units[revision] += 1
            found.total += 1
        self._total += 1
        return True

    def _has_room(self, client: _Client, now_s: float) -> bool:
        if len(self._clients) == 1 or client.total < self._total - client.total:
            return True
        return client.total < FREE_UNITS + FREE_UNITS_PER_S * (now_s - self._begun_s)

    def _balanced(self, client: _Client, revision: str) -> bool:
        """Whether one more unit at the revision leaves the client's share of it near the revision's weight."""
        weight, total = self._weights.get(revision, 0) / 100, client.total + 1
        if weight == 1:
            return True  # it has all of them
        excess = client.units[revision] + 1 - weight * total
        return excess <= BALANCE_SIGMAS * math.sqrt(weight * (1 - weight) * total) + BALANCE_UNITS

    def _client(self, name: str) -> _Client | None:
        # The process's own keyed hash: no client can choose a name that collides with another's.
        number = hash(name)
        known = self._clients.get(number)
        if known is None and len(self._clients) < MAX_CLIENTS:
            known = self._clients[number] = _Client()
        return known

    def _remember(self, session: int, bits: int) -> None:
        if len(self._oldest_first) >= MAX_SESSIONS:
            self.forget(1)
        else:
            self._room.take()
        self._oldest_first.append(session)
        self._sessions[session] = bits


class CountedSessions(Protocol):
    """What counts the sessions of a generation: `Units` for one lane, `SharedUnits` for two."""

    def assign(self, revision: str, key: str, client: str, now_s: float) -> tuple[bool, bool]: ...

    def has(self, key: str) -> bool: ...

    def remember(self, key: str) -> None: ...

    def first_end(self, key: str) -> bool: ...

    def first(self, key: str, name: str) -> bool: ...

    def end(self) -> None: ...


class SharedUnits:
    """`Units` in the compiled data plane, where its fast lane counts sessions too: one session is one unit in both."""

    __slots__ = ("native",)

    def __init__(self, native: "_native.Units") -> None:
        self.native = native

    def __len__(self) -> int:
        return len(self.native)

    def assign(self, revision: str, key: str, client: str, now_s: float) -> tuple[bool, bool]:
        return self.native.assign(revision, _bytes(key), _bytes(client), now_s)

    def has(self, key: str) -> bool:
        return self.native.has(_bytes(key))

    def remember(self, key: str) -> None:
        self.native.remember(_bytes(key))

    def first_end(self, key: str) -> bool:
        return self.native.first_end(_bytes(key))

    def first(self, key: str, name: str) -> bool:
        return self.native.first(_bytes(key), name)

    def end(self) -> None:
        self.native.end()


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
