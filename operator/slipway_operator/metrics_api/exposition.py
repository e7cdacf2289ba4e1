"""Parses the load of a pod from its page of metrics, in Prometheus' text format; pure.

https://prometheus.io/docs/instrumenting/exposition_formats/. prometheus_client parses only the needed lines: a whole
page of vLLM would take 25 times as long. A page comes from a tenant's pod, and the library's time grows with the square
of a line's length, so the length of lines is limited before.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from slipway_operator.model.engine_types import SINGLE, VLLM, EngineMetrics

Buckets = tuple[tuple[float, float], ...]

_MOST_LINES, _MOST_BUCKETS = 20_000, 256
# Lines that are parsed, at some 20 µs each: several engines in one pod have some 30 each.
_MOST_SAMPLES = 1024
_LARGEST = 1e15  # requests or tokens: more than any real value, but sums of them are still valid quantities
_LONGEST_LINE, _MOST_WANTED = 1024, 1 << 17  # characters: of one needed line, and of all together


class Malformed(ValueError):
    """The page cannot be read; the message names what is invalid."""


@dataclass(frozen=True, slots=True)
class ExposedSample:
    """One scrape of one pod, aggregated over its engines. None: the engine does not export it, or it is missing."""

    waiting: float | None  # requests
    running: float | None  # requests
    tokens: float | None  # tokens generated since the engine started
    kv_usage: float | None  # used share of the KV cache, 0 to 1
    # (upper bound in seconds, count of first tokens up to it since the start); bounds rise, the last is infinite.
    ttft: Buckets | None = None
    prompt_tokens: float | None = None  # tokens of prompts since the engine started
    # (field, metric name) of metrics that the engine should export and the page lacks. SGLang exports its counters only
    # after the first request, so other metrics stay known when one is missing.
    missing: tuple[tuple[str, str], ...] = ()

    def missing_name(self, field: str) -> str:
        """Return the metric name of a field that the page lacks; empty if the page has it."""
        return dict(self.missing).get(field, "")


def parse(page: str, names: EngineMetrics = VLLM) -> ExposedSample:
    """Parse a page.

    Raises:
        Malformed: when a number or a line is invalid.
    """
    bucket = f"{names.ttft}_bucket" if names.ttft else ""
    fields = {field: names.of(field) for field in SINGLE}
    wanted = tuple(name for name in (*(name for several in fields.values() for name in several), bucket) if name)
    found: dict[str, list[float]] = {}
    buckets: dict[float, float] = {}
    for sample in _samples(page, wanted):
        if names.breakdown and sample.labels.get(names.breakdown):
            continue
        if sample.name == bucket:
            bound = _bound(sample)
            buckets[bound] = min(buckets.get(bound, 0.0) + _number(sample), _LARGEST)
        else:
            found.setdefault(sample.name, []).append(_number(sample))
    if len(buckets) > _MOST_BUCKETS:
        raise Malformed(f"{bucket} has {len(buckets)} bounds")
    numbers = {field: _first(found, several) for field, several in fields.items()}
    sums = {field: min(sum(items), _LARGEST) if items else None for field, items in numbers.items()}
    usage = numbers["kv_usage"]
    missing = [(field, several[0]) for field, several in fields.items() if several and not numbers[field]]
    # Before the first request an engine has no buckets yet; with tokens and without buckets it has no histogram.
    lost = bool(bucket) and not buckets and (sums["tokens"] or 0) > 0
    return ExposedSample(
        waiting=sums["waiting"],
        running=sums["running"],
        tokens=sums["tokens"],
        kv_usage=sum(usage) / len(usage) if usage else None,
        ttft=tuple(sorted(buckets.items())) if bucket and not lost else None,
        prompt_tokens=sums["prompt_tokens"],
        missing=(*missing, *([("ttft", bucket)] if lost else [])),
    )


def gauges(page: str, names: tuple[str, ...]) -> dict[str, float]:
    """Return the values of gauges without labels by name, but for those that are no number yet.

    Raises:
        Malformed: when a number or a line is invalid.
    """
    return {sample.name: _number(sample) for sample in _samples(page, names) if not math.isnan(sample.value)}


def _samples(page: str, names: tuple[str, ...]) -> Iterator[Sample]:
    if not names:
        return
    lines = page.splitlines()
    if len(lines) > _MOST_LINES:
        raise Malformed(f"more than {_MOST_LINES} lines")
    wanted = [line for line in lines if line.startswith(names)]
    if (
        len(wanted) > _MOST_SAMPLES
        or any(len(line) > _LONGEST_LINE for line in wanted)
        or sum(map(len, wanted)) > _MOST_WANTED
    ):
        raise Malformed("more labels than any model server has")
    try:
        families = list(text_string_to_metric_families("\n".join(wanted)))
    except (ValueError, LookupError) as error:
        raise Malformed(f"a line cannot be read: {str(error)[:64]}") from error
    for family in families:
        yield from (sample for sample in family.samples if sample.name in names)


def _number(sample: Sample) -> float:
    if not 0 <= sample.value <= _LARGEST:
        raise Malformed(f"{sample.name} is {sample.value:g}")
    return sample.value


def _bound(sample: Sample) -> float:
    try:
        bound = float(sample.labels["le"])
    except (KeyError, ValueError):
        bound = math.nan
    if math.isnan(bound):
        raise Malformed(f"{sample.name} has a bucket without a bound")
    return bound


def _first(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    """Return a metric's values, one for each engine of a pod, by the first name that was found; empty if none was."""
    return next((found[name] for name in names if name in found), [])
