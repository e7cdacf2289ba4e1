"""Parses the counters of a gateway; malformed parts are left out, and all sizes are bounded; pure."""

import math
from dataclasses import fields
from itertools import pairwise
from typing import Any, TypeVar

from slipway_operator.api.objects import Json
from slipway_operator.model.cluster.samples import (
    BINS,
    Agreements,
    Discordance,
    PairedTimes,
    Pairs,
    Probed,
    Quality,
    Sample,
    Scores,
    Side,
    Twins,
)

# Above what our gateways send: four generations, six strata, some hundred buckets.
MOST_GENERATIONS, MOST_REVISIONS, MOST_STRATA, MOST_BUCKETS, MOST_EVENTS = 8, 4, 16, 256, 16
MOST_COMPARISONS, MOST_REASONS = 4, 16
KINDS = ("ttft", "itl", "e2e")
MAX_COUNT = 1 << 53  # where doubles, with which the judge computes, are exact
LONGEST = 64  # characters of a name

T = TypeVar("T", Pairs, Discordance, PairedTimes, Probed, Quality, Scores, Agreements)
Bounds = dict[str, tuple[float, ...]]


def bounds(counters: Any) -> Bounds:
    """Return the upper bounds of latency buckets in seconds, by kind; a kind with invalid bounds is left out."""
    found = {kind: _rising(counters.get(kind)) for kind in KINDS} if isinstance(counters, dict) else {}
    return {kind: items for kind, items in found.items() if items}


def samples(counters: Any, known: Bounds) -> tuple[Sample, ...]:
    """Return the counters of each readable generation; empty for a gateway that sends no counters."""
    newest = counters[-MOST_GENERATIONS:] if isinstance(counters, list) else []
    return tuple(found for item in newest if (found := _sample(item, known)))


def _rising(items: Any) -> tuple[float, ...]:
    numbers = isinstance(items, list) and all(isinstance(x, int | float) and not isinstance(x, bool) for x in items)
    if not numbers or not 0 < len(items) <= MOST_BUCKETS:
        return ()
    rises = math.isfinite(items[-1]) and all(low < high for low, high in pairwise(items))
    return tuple(float(item) for item in items) if rises else ()


def _sample(item: Any, known: Bounds) -> Sample | None:
    try:
        weights = {_name(name): _count(weight) for name, weight in _few(item["weights"], MOST_REVISIONS).items()}
        sides = _few(item["revisions"], MOST_REVISIONS)
        revisions = {_name(name): _side(side, known) for name, side in sides.items()}
        copied = _few(item.get("shadow") or {}, MOST_REVISIONS)
        shadow = {_name(name): _comparisons(found) for name, found in copied.items()}
        twins = {_name(name): _twins(found) for name, found in _few(item.get("twins") or {}, MOST_REVISIONS).items()}
        agreed = _few(item.get("agreements") or {}, MOST_REVISIONS)
        agreements = {_name(name): _counts(Agreements, found) for name, found in agreed.items()}
        return Sample(_count(item["generation"]), weights, revisions, shadow, twins, agreements)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _side(side: Json, known: Bounds) -> Side:
    predictions = side.get("predictions") or {}
    return Side(
        requests=_count(side["requests"]),
        # A gateway of a former release counts no units: without this total its events cannot be used.
        units=_count(side.get("units", 0)),
        events={_name(name): _count(count) for name, count in _few(side.get("events") or {}, MOST_EVENTS).items()},
        slow=_times(side.get("slow") or {}, known),
        late=_times(side.get("late") or {}, known),
        assigned=_count(side.get("assigned", 0)),
        rated=_count(side.get("rated", 0)),
        wrong=_count(side.get("wrong", 0)),
        predicted=_histogram(predictions.get("bins") or (), BINS),
        unread=_count(predictions.get("unread", 0)),
    )


def _comparisons(found: Json) -> dict[str, Pairs]:
    counted = _few(found, MOST_COMPARISONS)
    return {_name(by): _counts(Pairs, pairs) for by, pairs in counted.items()}


def _twins(found: Json) -> Twins:
    events, latencies = _few(found["events"], MOST_EVENTS), _few(found["latencies"], MOST_COMPARISONS)
    return Twins(
        open=_count(found["open"]),
        pairs=_count(found["pairs"]),
        # A gateway of a former release has no `unanswered`: all its pairs have a twin.
        events={_name(name): _counts(Discordance, {"unanswered": 0, **counts}) for name, counts in events.items()},
        latencies={_name(name): _counts(PairedTimes, counts) for name, counts in latencies.items()},
        withheld={_name(name): _count(count) for name, count in _few(found["withheld"], MOST_REASONS).items()},
        probes=_counts(Probed, found["probes"]) if found.get("probes") else Probed(),
        quality=_counts(Quality, found["quality"]) if found.get("quality") else Quality(),
        scores=_counts(Scores, found["scores"]) if found.get("scores") else Scores(),
        agreements=_counts(Agreements, found["agreements"]) if found.get("agreements") else Agreements(),
    )


def _counts(kind: type[T], counts: Json) -> T:
    """Read a record of counts; raises KeyError when one is missing."""
    return kind(*(_count(counts[field.name]) for field in fields(kind)))


def _times(times: Json, known: Bounds) -> dict[str, dict[str, tuple[int, ...]]]:
    return {kind: _strata(times.get(kind) or {}, len(known[kind]) + 1) for kind in known}


def _strata(strata: Json, buckets: int) -> dict[str, tuple[int, ...]]:
    return {_name(name): _histogram(counts, buckets) for name, counts in _few(strata, MOST_STRATA).items()}


def _histogram(counts: Any, buckets: int) -> tuple[int, ...]:
    """Return `buckets` counts; zeros at the end, which a gateway omits, are filled in."""
    found = tuple(_count(count) for count in counts)
    if len(found) > buckets:
        raise ValueError("one count more than bounds at most")
    return found + (0,) * (buckets - len(found))


def _few(items: Json, most: int) -> Json:
    if len(items) > most:
        raise ValueError(f"{len(items)} items")
    return items


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > LONGEST:
        raise ValueError("no name")
    return name


def _count(count: Any) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_COUNT:
        raise ValueError("no count")
    return count
