"""The feedback that this gateway has counted: of bounded size, the oldest is forgotten first (pure)."""

from collections import OrderedDict

# Tokens and sessions, some 120 bytes each: 16 MB when the memory is full.
MAX_REMEMBERED = 131_072
CLAIMED, RATED, WRONG = 1, 2, 4


class FeedbackMemory:
    """The bits CLAIMED, RATED and WRONG of tokens and sessions. A forgotten one counts as new again."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._bits: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bits)

    def first(self, name: bytes, bit: int) -> bool:
        """Sets a bit of a token or session; returns whether the bit was not set before."""
        # The process's own keyed hash: no client can choose names that collide.
        known = self._bits.get(hash(name), 0)
        self._bits[hash(name)] = known | bit
        if len(self._bits) > self._limit:
            self._bits.popitem(last=False)
        return not known & bit

    def forget(self, name: bytes) -> None:
        self._bits.pop(hash(name), None)
