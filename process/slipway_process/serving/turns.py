"""Whose turn is next where few slots serve many tenants, and how a task of an event loop waits for its turn."""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueRules:
    """`slots`: items that run at once, `share`: those of one tenant. `places`: items that wait."""

    slots: int
    share: int
    places: int


@dataclass(slots=True)
class FairQueue(Generic[T]):
    """Items that wait, by tenant. Tenants take turns, and each has its items in their order.

    A full queue takes an item of a tenant that has fewer than another one: the newest item of the tenant with most of
    them gives way. So no one is refused for what another tenant sends, and a tenant that is alone has all places.
    """

    rules: QueueRules
    _waiting: OrderedDict[str, deque[T]] = field(default_factory=OrderedDict)  # the next turn first
    _running: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def running(self) -> int:
        return sum(self._running.values())

    def push(self, tenant: str, item: T) -> T | None:
        """Add an item; return the one that is refused for it, which may be the same one."""
        self._waiting.setdefault(tenant, deque()).append(item)
        if len(self) <= self.rules.places:
            return None
        largest = max(self._waiting, key=lambda name: (len(self._waiting[name]), name == tenant))
        refused = self._waiting[largest].pop()
        self._forget_empty(largest)
        return refused

    def pop(self) -> T | None:
        """The next item that may run; None without a free slot, or where all that wait have their share."""
        if self.running >= self.rules.slots:
            return None
        for tenant, items in self._waiting.items():
            if self._running.get(tenant, 0) < self.rules.share:
                item = items.popleft()
                self._running[tenant] = self._running.get(tenant, 0) + 1
                self._waiting.move_to_end(tenant)
                self._forget_empty(tenant)
                return item
        return None

    def release(self, tenant: str) -> None:
        """An item of the tenant has run."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def remove(self, tenant: str, item: T) -> None:
        """An item is not wanted any more."""
        self._waiting[tenant].remove(item)
        self._forget_empty(tenant)

    def _forget_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]


class TextBusy(Exception):
    """Too many jobs wait. Nothing was started; a later attempt may succeed."""


class Turns:
    def __init__(self, rules: QueueRules) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(rules)

    async def take(self, tenant: str) -> None:
        """Wait for a slot, which `release` gives back.

        Raises:
            TextBusy: too many jobs of this tenant wait.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (refused := self._queue.push(tenant, turn)) is not None:
            refused.set_exception(TextBusy("Too many texts wait for their tokens."))
        self._advance()
        try:
            await asyncio.wait([turn])  # unlike `await turn`, its end does not cancel the turn
        except asyncio.CancelledError:
            self._give_up(tenant, turn)
            raise
        turn.result()

    def release(self, tenant: str) -> None:
        self._queue.release(tenant)
        self._advance()

    def _advance(self) -> None:
        while (turn := self._queue.pop()) is not None:
            turn.set_result(None)

    def _give_up(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        """The caller of `take` is gone, perhaps in the moment of its turn."""
        if not turn.done():
            self._queue.remove(tenant, turn)
        elif turn.exception() is None:
            self.release(tenant)
