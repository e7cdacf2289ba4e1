"""The feedback that this gateway has counted: of bounded size, the oldest of who has most is forgotten first (pure)."""

from slipway_process.fair_memory import FairMemory

# Tokens and sessions, some 120 bytes each: 16 MB when the memory is full.
MAX_REMEMBERED = 131_072
CLAIMED, RATED, WRONG = 1, 2, 4


class FeedbackMemory:
    """The bits CLAIMED, RATED and WRONG of tokens and sessions. A forgotten one counts as new again."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._bits: FairMemory[str, int, int] = FairMemory(limit)

    def __len__(self) -> int:
        return self._bits.size

    def first(self, owner: str, name: bytes, bit: int) -> bool:
        """Sets a bit of a token or session of an owner; returns whether the bit was not set before."""
        # The process's own keyed hash: no client can choose names that collide.
        known = self._bits.get(owner, hash(name)) or 0
        if not known & bit:
            self._bits.put(owner, hash(name), known | bit)
        return not known & bit

    def forget(self, owner: str, name: bytes) -> None:
        self._bits.pop(owner, hash(name))
