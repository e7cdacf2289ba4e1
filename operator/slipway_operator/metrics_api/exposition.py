"""Parses the load of a pod from `/metrics`, in Prometheus' text format and vLLM's names; pure.

https://prometheus.io/docs/instrumenting/exposition_formats/ and vLLM's production metrics. prometheus_client parses
only the needed lines: a whole page of vLLM's takes 25 times as long. A page comes from a tenant's pod, and the
library's time grows with the square of a line's length, so the length of lines is limited before.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

Buckets = tuple[tuple[float, float], ...]

_WAITING, _RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
_TOKENS = "vllm:generation_tokens_total"
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second from servers before 2025
_TTFT = "vllm:time_to_first_token_seconds_bucket"
_WANTED = (_WAITING, _RUNNING, _TOKENS, *_KV, _TTFT)
_MOST_LINES, _MOST_BUCKETS = 20_000, 256
_LARGEST = 1e15  # requests or tokens: above any real value, and a sum of them is still a quantity of Kubernetes
_LONGEST_LINE, _MOST_WANTED = 1024, 1 << 17  # characters, of one needed line and of all of them


class Malformed(ValueError):
    """The page is not from a model server; the message names what is missing or invalid."""


@dataclass(frozen=True, slots=True)
class ExposedSample:
    """One scrape of one pod, aggregated over its engines."""

    waiting: float  # requests
    running: float  # requests
    tokens: float  # generated since the start
    kv_usage: float  # held share of the KV cache, 0 to 1
    ttft: Buckets = ()  # (upper bound in seconds, first tokens up to it since the start), rising; the last is infinite


def parse(page: str) -> ExposedSample:
    """Parse a page.

    Raises:
        Malformed: when a metric that every model server exports is missing, or a number is invalid.
    """
    found: dict[str, list[float]] = {}
    buckets: dict[float, float] = {}
    for sample in _samples(page):
        if sample.name == _TTFT:
            bound = _bound(sample)
            buckets[bound] = buckets.get(bound, 0.0) + _number(sample)
        else:
            found.setdefault(sample.name, []).append(_number(sample))
    if len(buckets) > _MOST_BUCKETS:
        raise Malformed(f"{_TTFT} has {len(buckets)} bounds")
    usage = next((found[name] for name in _KV if name in found), [0.0])
    return ExposedSample(
        waiting=sum(_needed(found, _WAITING)),
        running=sum(_needed(found, _RUNNING)),
        tokens=sum(_needed(found, _TOKENS)),
        kv_usage=sum(usage) / len(usage),
        ttft=tuple(sorted(buckets.items())),
    )


def _samples(page: str) -> Iterator[Sample]:
    lines = page.splitlines()
    if len(lines) > _MOST_LINES:
        raise Malformed(f"more than {_MOST_LINES} lines")
    wanted = [line for line in lines if line.startswith(_WANTED)]
    if any(len(line) > _LONGEST_LINE for line in wanted) or sum(map(len, wanted)) > _MOST_WANTED:
        raise Malformed("more labels than any model server has")
    try:
        families = list(text_string_to_metric_families("\n".join(wanted)))
    except (ValueError, LookupError) as error:
        raise Malformed(f"a line cannot be read: {str(error)[:64]}") from error
    for family in families:
        yield from (sample for sample in family.samples if sample.name in _WANTED)


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
        raise Malformed(f"{_TTFT} has a bucket without a bound")
    return bound


def _needed(found: dict[str, list[float]], name: str) -> list[float]:
    if name not in found:
        raise Malformed(f"{name} is missing")
    return found[name]
