"""What gateways count for spec.accuracy, described once for operator and gateways.

docs/contracts.md says what counts. Labels of clients count for the revision that answered, however long ago. What a
revision predicts is counted in bins that one gateway makes of its first predictions and the operator publishes: so all
gateways count in the same bins, also after they restart.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from slipway_contracts.api.markers import AtMost
from slipway_contracts.api.types import Int32, Int64, strict
from slipway_contracts.api.writing import to_json
from slipway_contracts.counters import BINS, MAX_COUNT
from slipway_contracts.twin_shadow import outside

MOST_CUTS = MOST_LABELS = BINS - 1
LONGEST_CUT = 32  # characters: any number of JSON is shorter
OUTCOMES = ("right", "wrong")  # of labels, by their place in a tally
LONGEST_AGE_S = 180 * 86_400
MOST_REVISIONS = 16  # of one report
_MOST_CRC = (1 << 32) - 1
_NAME = re.compile("[-a-zA-Z0-9]{1,24}(/[0-9a-f]{8})?")  # of a revision, or of a revision and bins

Tally = tuple[int, ...]  # observations by place: outcomes of labels, or bins


@strict
@dataclass(frozen=True, slots=True)
class PublishedBins:
    """Bins in which gateways count the predictions of a revision: cuts of numbers, or labels. One more bin has all
    other predictions."""

    cuts: Annotated[
        tuple[Annotated[str, AtMost(LONGEST_CUT), Field(description="Upper end of a bin, inclusive.")], ...],
        AtMost(MOST_CUTS),
    ] = ()
    """Upper ends of the bins of numbers, in ascending order, as text: the digest of a table has no fractions, which
    each JSON writer writes otherwise."""
    labels: Annotated[tuple[Annotated[Int64, Field(description="CRC-32 of a label.")], ...], AtMost(MOST_LABELS)] = ()
    """CRC-32 of the labels that have a bin, of their text in UTF-8."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """The cuts as numbers.

        Raises:
            ValueError: one of them is none.
        """
        return tuple(map(float, self.cuts))

    @property
    def id(self) -> str:
        """Identity of the bins: counts in other bins do not add up with these."""
        text = json.dumps(to_json(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@strict
@dataclass(frozen=True, slots=True)
class AccuracyCounting:
    """What gateways count for spec.accuracy."""

    feedback: bool | None = None
    """Whether labels that clients send are counted by revision. Responses have a token for them."""
    max_age_seconds: Int32 | None = None
    """Age of a response up to which a label counts."""
    revision: str | None = None
    """Revision whose predictions are counted. Absent: none."""
    bins: PublishedBins | None = None
    """Bins in which they are counted. If absent, gateways make bins of its first predictions and report them."""


def refusal(counting: AccuracyCounting) -> str:
    """Why gateways do not count so, with the path of the field; empty where they do."""
    return next(filter(None, _refusals(counting)), "")


def _refusals(counting: AccuracyCounting) -> Iterator[str]:
    if counting.max_age_seconds is not None:
        yield outside("accuracy.maxAgeSeconds", counting.max_age_seconds, 1, LONGEST_AGE_S)
    if counting.bins is not None and not is_sound(counting.bins):
        yield "accuracy.bins has cuts that do not ascend, labels that are no CRC-32, or neither or both of them"


def is_sound(bins: PublishedBins) -> bool:
    """Whether every prediction has one bin."""
    try:
        numbers = bins.numbers
    except ValueError:
        return False
    ascend = all(map(math.isfinite, numbers)) and all(low < high for low, high in pairwise(numbers))
    distinct = len(set(bins.labels)) == len(bins.labels) and all(0 <= one <= _MOST_CRC for one in bins.labels)
    fits = len(bins.cuts) <= MOST_CUTS and len(bins.labels) <= MOST_LABELS
    return ascend and distinct and fits and bool(bins.cuts) != bool(bins.labels)


@dataclass(frozen=True, slots=True)
class AccuracyCounts:
    """What one gateway process has counted of a route since it began.

    `labels`: right and wrong ones by revision. `predictions`: by revision and id of the bins, `REVISION/BINS`. `bins`:
    those that it made of the first predictions of a revision, by revision.
    """

    labels: Mapping[str, Tally] = field(default_factory=dict)
    predictions: Mapping[str, Tally] = field(default_factory=dict)
    bins: Mapping[str, PublishedBins] = field(default_factory=dict)

    def by_key(self) -> dict[str, Tally]:
        """All counts, by revision or by revision and bins."""
        return {**self.labels, **self.predictions}


def read(reported: Any) -> AccuracyCounts:
    """The counts of a report; those that are malformed are left out."""
    parts = reported if isinstance(reported, Mapping) else {}
    return AccuracyCounts(
        dict(_tallies(parts.get("labels"), len(OUTCOMES))),
        dict(_tallies(parts.get("predictions"), BINS)),
        {name: bins for name, written in _some(parts.get("bins")) if (bins := _bins(written)) is not None},
    )


def _some(part: Any) -> list[tuple[str, Any]]:
    """The entries of a part whose names are short and without spaces, at most MOST_REVISIONS of them."""
    entries = list(part.items())[:MOST_REVISIONS] if isinstance(part, Mapping) else []
    return [(name, counts) for name, counts in entries if isinstance(name, str) and _NAME.fullmatch(name)]


def _tallies(part: Any, most: int) -> Iterator[tuple[str, Tally]]:
    for name, counts in _some(part):
        if isinstance(counts, list | tuple) and len(counts) <= most and all(map(_is_count, counts)):
            yield name, (*counts, *(0,) * (most - len(counts)))


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MAX_COUNT


def _bins(written: Any) -> PublishedBins | None:
    parts: Mapping[str, Any] = written if isinstance(written, Mapping) else {}
    cuts, labels = parts.get("cuts"), parts.get("labels")
    if not (_all(cuts, str) and _all(labels, int)):
        return None
    bins = PublishedBins(tuple(one[:LONGEST_CUT] for one in cuts or ()), tuple(labels or ()))
    return bins if is_sound(bins) else None


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list | tuple) and all(type(one) is kind for one in values)
