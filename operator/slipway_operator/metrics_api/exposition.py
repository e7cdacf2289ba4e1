"""Parses the load of a pod from its page of metrics, in Prometheus' text format; pure.

https://prometheus.io/docs/instrumenting/exposition_formats/. prometheus_client parses only the needed lines: a whole
page of vLLM's takes 25 times as long. A page comes from a tenant's pod, and the library's time grows with the square of
a line's length, so the length of lines is limited before.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from slipway_operator.model.engine_types import VLLM, EngineMetrics

Buckets = tuple[tuple[float, float], ...]

_MOST_LINES, _MOST_BUCKETS = 20_000, 256
_LARGEST = 1e15  # requests or tokens: above any real value, and a sum of them is still a quantity of Kubernetes
_LONGEST_LINE, _MOST_WANTED = 1024, 1 << 17  # characters, of one needed line and of all of them


class Malformed(ValueError):
    """The page is not from a model server; the message names what is missing or invalid."""


@dataclass(frozen=True, slots=True)
class ExposedSample:
    """One scrape of one pod, aggregated over its engines."""

    waiting: float | None  # requests; None: the engine does not export it
    running: float | None  # requests
    tokens: float | None  # generated since the start
    kv_usage: float | None  # held share of the KV cache, 0 to 1
    # (upper bound in seconds, first tokens up to it since the start), rising; the last is infinite
    ttft: Buckets | None = None


def parse(page: str, names: EngineMetrics = VLLM) -> ExposedSample:
    """Parse a page.

    Raises:
        Malformed: when a metric that the engine exports is missing, or a number is invalid.
    """
    bucket = f"{names.ttft}_bucket" if names.ttft else ""
    wanted = tuple(name for name in (*names.waiting, *names.running, *names.tokens, *names.kv_usage, bucket) if name)
    found: dict[str, list[float]] = {}
    buckets: dict[float, float] = {}
    for sample in _samples(page, wanted):
        if sample.name == bucket:
            bound = _bound(sample)
            buckets[bound] = buckets.get(bound, 0.0) + _number(sample)
        else:
            found.setdefault(sample.name, []).append(_number(sample))
    if len(buckets) > _MOST_BUCKETS:
        raise Malformed(f"{bucket} has {len(buckets)} bounds")
    usage = next((found[name] for name in names.kv_usage if name in found), None)
    return ExposedSample(
        waiting=_sum(found, names.waiting),
        running=_sum(found, names.running),
        tokens=_sum(found, names.tokens),
        kv_usage=sum(usage) / len(usage) if usage else None,
        ttft=tuple(sorted(buckets.items())) if bucket else None,
    )


def _samples(page: str, names: tuple[str, ...]) -> Iterator[Sample]:
    if not names:
        return
    lines = page.splitlines()
    if len(lines) > _MOST_LINES:
        raise Malformed(f"more than {_MOST_LINES} lines")
    wanted = [line for line in lines if line.startswith(names)]
    if any(len(line) > _LONGEST_LINE for line in wanted) or sum(map(len, wanted)) > _MOST_WANTED:
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


def _sum(found: dict[str, list[float]], names: tuple[str, ...]) -> float | None:
    """The sum over the engines of a pod; None for a metric without a name."""
    if not names:
        return None
    numbers = next((found[name] for name in names if name in found), None)
    if numbers is None:
        raise Malformed(f"{names[0]} is missing")
    return sum(numbers)
