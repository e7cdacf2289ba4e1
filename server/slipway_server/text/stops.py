"""Finds stop strings across tokens: text that may be the start of one is held back until that is decided.

Each stop string takes one pass over the text (Knuth-Morris-Pratt).
"""

from functools import lru_cache


class StopMatcher:
    """Finds the stop string that is complete first. Of several that end at the same character, the longest."""

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        """`include`: whether the stop string that ends an answer is part of the answer."""
        self._stops = [_KmpMatcher(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._include = include
        self._pending = ""
        self.matched: str | None = None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """The text that can be sent; after a match everything from the stop string on is dropped.

        Without `may_end` a stop string that is complete within this text is ignored.
        """
        if not self._stops:
            return text
        pending = self._pending + text
        for end, character in enumerate(text, len(self._pending) + 1):
            complete = [matching.stop for matching in self._stops if matching.step(character)]
            if complete and may_end:
                self.matched, self._pending = complete[0], ""
                return pending[: end if self._include else end - len(complete[0])]
        sent = len(pending) - max(matching.length for matching in self._stops)
        self._pending = pending[sent:]
        return pending[:sent]

    def flush(self) -> str:
        pending, self._pending = self._pending, ""
        return pending


class _KmpMatcher:
    """Counts in `length` how much of one stop string the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop, self.length = stop, 0
        self._prefix_function = _prefix_function(stop)

    def step(self, character: str) -> bool:
        """Whether the stop string is complete with this character."""
        while self.length and self.stop[self.length] != character:
            self.length = self._prefix_function[self.length - 1]
        self.length += self.stop[self.length] == character
        if self.length < len(self.stop):
            return False
        self.length = self._prefix_function[-1]
        return True


@lru_cache(maxsize=256)
def _prefix_function(stop: str) -> tuple[int, ...]:
    """The prefix function: for each prefix, the length of its longest proper prefix that is also its suffix."""
    found, length = [0], 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = found[length - 1]
        length += stop[length] == character
        found.append(length)
    return tuple(found)
