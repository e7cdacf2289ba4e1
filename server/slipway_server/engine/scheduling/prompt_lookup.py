"""Drafts of one sequence: the tokens that followed the last places where its newest tokens stood before. Pure.

A table of hash chains over its own tokens, as compressors of the LZ77 family have them: at most 24 bytes for each
indexed token, a few operations for each new one, and a bounded number of comparisons for each draft.
"""

from array import array
from collections.abc import Sequence as Tokens

import numpy
from numpy.typing import NDArray

WINDOW = 1 << 15  # tokens that are indexed at first, the newest ones; as many more are added before it starts over
LEAST_BUCKETS = 1 << 6
CANDIDATES = 16  # earlier places that are compared for a draft, the newest ones
NOWHERE = -1
_MULTIPLIER, _WORD = 0x9E3779B1, 0xFFFFFFFF


class PromptLookup:
    """Finds the longest end of a sequence that stands in it before, and what followed there."""

    def __init__(self, tokens: Tokens[int], *, least: int, most: int) -> None:
        """`least`, `most`: tokens of such an end; shorter ones are ignored, longer ones compared no further."""
        self._least, self._most = least, most
        self._dropped = max(0, len(tokens) - WINDOW)
        self._build(tokens[self._dropped :])

    def __len__(self) -> int:
        """Tokens of the sequence, those before the window included."""
        return self._dropped + len(self._tokens)

    def add(self, token: int) -> None:
        """Appends the sequence's next token."""
        if len(self._tokens) == 2 * WINDOW:
            self._dropped += WINDOW
            self._build(self._tokens[WINDOW:])
        elif len(self._tokens) == len(self._newest):
            self._build(self._tokens)  # with more buckets: in long chains, places of other tokens would hide its own
        self._tokens.append(token)
        self._previous.append(NOWHERE)
        if len(self._tokens) >= self._least:
            last = len(self._tokens) - 1
            bucket = self._bucket(self._tokens[-self._least :])
            self._previous[last], self._newest[bucket] = self._newest[bucket], last

    def draft(self, count: int) -> tuple[int, ...]:
        """Up to `count` tokens that may come next; () where the end stands nowhere before."""
        tokens, last = self._tokens, len(self._tokens) - 1
        if count < 1 or len(tokens) <= self._least:
            return ()
        best, place, candidate = self._least - 1, NOWHERE, self._previous[last]
        for _ in range(CANDIDATES):
            if candidate == NOWHERE:
                break
            if (length := self._common(candidate, last)) > best:
                best, place = length, candidate
                if length == self._most:
                    break
            candidate = self._previous[candidate]
        if place == NOWHERE:
            return ()
        # Where the two places overlap, the sequence repeats itself: so does the draft.
        period = last - place
        return tuple(tokens[place + 1 + at % period] for at in range(count))

    def _common(self, place: int, last: int) -> int:
        """How many tokens up to `place` are those up to `last`, at most `most`."""
        tokens, length = self._tokens, 0
        while length < self._most and length <= place and tokens[place - length] == tokens[last - length]:
            length += 1
        return length

    def _build(self, tokens: Tokens[int]) -> None:
        self._tokens = array("i", tokens)
        buckets = LEAST_BUCKETS
        while buckets < 2 * min(WINDOW, len(tokens)):
            buckets *= 2
        self._mask = buckets - 1
        previous = numpy.full(len(tokens), NOWHERE, numpy.int32)
        newest = numpy.full(buckets, NOWHERE, numpy.int32)
        if len(tokens) >= self._least:
            hashes = self._hashes(numpy.array(self._tokens, numpy.int64))
            order = numpy.argsort(hashes, kind="stable").astype(numpy.int32)
            ends, sorted_hashes = order + self._least - 1, hashes[order]
            follows = sorted_hashes[1:] == sorted_hashes[:-1]
            previous[ends[1:][follows]] = ends[:-1][follows]
            newest[sorted_hashes] = ends  # of equal ones the last one stays
        self._previous, self._newest = array("i", previous.tobytes()), array("i", newest.tobytes())

    def _hashes(self, tokens: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
        """The bucket of each run of `least` tokens, as `_bucket` computes it."""
        runs = len(tokens) - self._least + 1
        mixed = numpy.zeros(runs, numpy.int64)
        for at in range(self._least):
            mixed = (mixed ^ tokens[at : at + runs]) * _MULTIPLIER & _WORD
        return (mixed >> 7) & self._mask

    def _bucket(self, run: Tokens[int]) -> int:
        mixed = 0
        for token in run:
            mixed = (mixed ^ token) * _MULTIPLIER & _WORD
        return (mixed >> 7) & self._mask
