"""Counts of the last minute by name, to within ten seconds (pure)."""

from collections import deque
from collections.abc import Mapping, Sequence

SLOT_S = 10.0
_SLOTS = 6


class Recent:
    """Counts by name in the last minute. They are kept, and forgotten, in slots of ten seconds."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, dict[str, int]]] = deque(maxlen=_SLOTS)

    def add(self, counts: Mapping[str, int], now_s: float, only: Sequence[str] = ()) -> None:
        """Adds `counts`. `only`: the names that are added; empty: all."""
        number = int(now_s // SLOT_S)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        slot = self._slots[-1][1]
        for name in only or counts:
            if name in counts:
                slot[name] = slot.get(name, 0) + counts[name]

    def last_minute(self, now_s: float) -> dict[str, int]:
        found: dict[str, int] = {}
        oldest = int(now_s // SLOT_S) - _SLOTS
        for number, counts in self._slots:
            if number > oldest:
                for name, count in counts.items():
                    found[name] = found.get(name, 0) + count
        return found


class RecentUse:
    """What one tenant used in the last minute, and how often each limit refused a request of it."""

    def __init__(self) -> None:
        self.used, self.refused = Recent(), Recent()
