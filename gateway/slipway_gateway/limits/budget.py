"""One memory budget for all requests, with a share for each client (pure).

Bodies, whole responses, tokens of streams and mirrored copies count until their request ends. When there is no room,
caches are freed first. Then stalled clients are evicted: those whose body does not arrive, and those that do not read
their response. Only then are requests refused.
"""

from collections.abc import Callable
from types import TracebackType

from slipway_process.places import SHARE, TOTAL

# A client that moved within this time is not stalled, however little room there is.
STALLED_S = 1.0
# No more stalled clients than this are evicted at a time, in the order in which they last moved.
_EVICTED_AT_A_TIME = 64
STALLED = "stalled"
REASONS = (TOTAL, SHARE, STALLED)

Reclaim = Callable[[int], int]


class Account:
    """The bytes that one request holds. Closing gives all of them back; later calls have no effect."""

    __slots__ = ("_budget", "_closed", "_evict", "client", "held_bytes")

    def __init__(self, budget: "MemoryBudget", client: str) -> None:
        self._budget = budget
        self.client = client
        self.held_bytes = 0
        self._evict: Callable[[], None] | None = None
        self._closed = False

    def __enter__(self) -> "Account":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def grow(self, size_bytes: int) -> str:
        """Takes room for more bytes; returns "" or, if there is none, the one of `REASONS` for which it is refused."""
        return "" if self._closed else self._budget.take(self, size_bytes)

    def force(self, size_bytes: int) -> None:
        """Counts bytes that are in memory already; they take room from others."""
        if not self._closed:
            self._budget.add(self, size_bytes)

    def shrink(self, size_bytes: int) -> None:
        if not self._closed:
            self._budget.add(self, -min(size_bytes, self.held_bytes))

    def waits(self, evict: Callable[[], None]) -> None:
        """The request waits for its client to send or to read; `evict` ends it when others need the room."""
        if not self._closed:
            self._evict = evict
            self._budget.stopped(self)

    def moved(self) -> None:
        """The client sent or read something."""
        if self._evict and not self._closed:
            self._budget.stopped(self)

    def goes_on(self) -> None:
        """The request no longer waits for its client."""
        self._evict = None
        self._budget.moving(self)

    def evict(self) -> None:
        evict, self._evict = self._evict, None
        self.close()
        if evict:
            evict()

    def close(self) -> None:
        if not self._closed:
            self._budget.add(self, -self.held_bytes)
            self._budget.moving(self)
            self._closed = True


class MemoryBudget:
    """`client_bytes`: what the requests of one client may hold together while it is alone. `clock` counts seconds.

    A client that takes all it can leaves as much free for others, as with `Places`: two get a third each. What leaves
    when there is no room, bytes of caches and of others that are stalled, counts as free.

    `shed` is called for each request that is refused or ended, with one of `REASONS`.
    """

    def __init__(
        self,
        limit_bytes: int,
        client_bytes: int,
        clock: Callable[[], float],
        shed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.limit_bytes = limit_bytes
        # Of what is free, how much one client may hold; none: a client may hold all of it.
        self._ratio = max(1, client_bytes) / (limit_bytes - client_bytes) if client_bytes < limit_bytes else None
        self._clock = clock
        self.used_bytes = 0
        self._shed = shed
        self._clients: dict[str, int] = {}
        self._caches: list[tuple[Account, Reclaim]] = []
        # Since when the client of each account has not moved, the longest first.
        self._stopped: dict[Account, float] = {}

    def open(self, client: str) -> Account:
        """Opens the account of a request of `client`; "" is the gateway itself, whose share is not limited."""
        return Account(self, client)

    def caches(self, account: Account, reclaim: Reclaim) -> None:
        """Registers a cache with its account: `reclaim` frees about so many bytes and returns how many it freed."""
        self._caches.append((account, reclaim))

    def held_by(self, client: str) -> int:
        return self._clients.get(client, 0)

    # -- for accounts

    def take(self, account: Account, size_bytes: int) -> str:
        if self._ratio and account.client and self._is_beyond_share(account, size_bytes):
            return self._refused(SHARE)
        missing = self.used_bytes + size_bytes - self.limit_bytes
        if missing > 0 and not self._make_room(missing, account):
            return self._refused(TOTAL)
        self.add(account, size_bytes)
        return ""

    def _is_beyond_share(self, account: Account, size_bytes: int) -> bool:
        assert self._ratio, "otherwise a client may hold all"
        free_bytes = self.limit_bytes - self.used_bytes + sum(cache.held_bytes for cache, _ in self._caches)
        # Sizes differ: the share is of what is free with these bytes, or one large request would take far more.
        missing_bytes = (self.held_by(account.client) + size_bytes) / self._ratio + size_bytes - free_bytes
        if missing_bytes <= 0:
            return False
        others = self._stalled(missing_bytes, lambda one: one.client != account.client)
        return sum(one.held_bytes for one in others) < missing_bytes

    def add(self, account: Account, size_bytes: int) -> None:
        account.held_bytes += size_bytes
        self.used_bytes += size_bytes
        held_bytes = self._clients.get(account.client, 0) + size_bytes
        if held_bytes:
            self._clients[account.client] = held_bytes
        else:
            self._clients.pop(account.client, None)

    def stopped(self, account: Account) -> None:
        self._stopped.pop(account, None)
        self._stopped[account] = self._clock()

    def moving(self, account: Account) -> None:
        if self._stopped:
            self._stopped.pop(account, None)

    def _refused(self, reason: str) -> str:
        self._shed(reason)
        return reason

    def _make_room(self, missing_bytes: int, asking: Account) -> bool:
        for _, reclaim in self._caches:
            if missing_bytes > 0:
                missing_bytes -= reclaim(missing_bytes)
        if missing_bytes > 0:
            missing_bytes -= self._evict(missing_bytes, asking)
        return missing_bytes <= 0

    def _stalled(self, wanted_bytes: float, fits: Callable[[Account], bool]) -> list[Account]:
        """Accounts whose clients are stalled, the longest first, until they hold so much together."""
        oldest_s, held_bytes = self._clock() - STALLED_S, 0
        found: list[Account] = []
        for account, since_s in self._stopped.items():
            if held_bytes >= wanted_bytes or since_s > oldest_s or len(found) >= _EVICTED_AT_A_TIME:
                break
            if account.held_bytes and fits(account):
                found.append(account)
                held_bytes += account.held_bytes
        return found

    def _evict(self, missing_bytes: int, asking: Account) -> int:
        chosen = self._stalled(missing_bytes, lambda one: one is not asking)
        freed_bytes = sum(account.held_bytes for account in chosen)
        for account in chosen:
            self._shed(STALLED)
            account.evict()
        return freed_bytes


def unlimited() -> Account:
    """An account of its own budget that is never full, for what needs no limit."""
    size = 1 << 62
    return MemoryBudget(size, size, float).open("")
