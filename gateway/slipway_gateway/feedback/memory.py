"""What feedback was counted here already: bounded, the oldest is forgotten first (pure)."""

from collections import OrderedDict

# Tokens and sessions, some 120 bytes each: 16 MB where they are used up.
MAX_REMEMBERED = 131_072
CLAIMED, RATED, WRONG = 1, 2, 4


class FeedbackMemory:
    """Bits of tokens and sessions. One that was forgotten is new again."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._bits: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bits)

    def first(self, name: bytes, bit: int) -> bool:
        """Whether it has this bit for the first time."""
        # The process's own keyed hash: no client can choose names that collide.
        known = self._bits.get(hash(name), 0)
        self._bits[hash(name)] = known | bit
        if len(self._bits) > self._limit:
            self._bits.popitem(last=False)
        return not known & bit

    def forget(self, name: bytes) -> None:
        self._bits.pop(hash(name), None)
