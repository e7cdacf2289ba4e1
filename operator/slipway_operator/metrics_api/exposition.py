"""What a pod says of its load on `/metrics`, in Prometheus' text format and vLLM's names; pure.

https://prometheus.io/docs/instrumenting/exposition_formats/ and vLLM's production metrics.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

Buckets = tuple[tuple[float, float], ...]

_LINE = re.compile(r"(vllm:[a-z0-9_]+)(?:\{(.*)\})? +([^ ]+)(?: +-?\d+)?")
_LE = re.compile(r'(?:^|,)le="([^"]*)"')
_WAITING, _RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
_TOKENS = "vllm:generation_tokens_total"
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second by servers of before 2025
_TTFT = "vllm:time_to_first_token_seconds_bucket"
_WANTED = {_WAITING, _RUNNING, _TOKENS, *_KV, _TTFT}
_MOST_LINES, _MOST_BUCKETS = 20_000, 256


class Malformed(ValueError):
    """The page is none of a model server; the message says what is missing or odd."""


@dataclass(frozen=True, slots=True)
class ExposedSample:
    """One look at one pod; several engines in it count together."""

    waiting: float  # requests
    running: float  # requests
    tokens: float  # generated since the start
    kv_usage: float  # held share of the KV cache, 0 to 1
    ttft: Buckets = ()  # (upper bound in seconds, first tokens up to it since the start), rising; the last is infinite


def parse(page: str) -> ExposedSample:
    """Read a page.

    Raises:
        Malformed: when what every model server says is missing, or a number is none.
    """
    found: dict[str, list[float]] = {}
    buckets: dict[float, float] = {}
    for name, labels, value in _samples(page):
        if name == _TTFT:
            bound = _bound(labels)
            buckets[bound] = buckets.get(bound, 0.0) + value
        else:
            found.setdefault(name, []).append(value)
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


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    for number, line in enumerate(page.splitlines()):
        if number >= _MOST_LINES:
            raise Malformed(f"more than {_MOST_LINES} lines")
        # Most lines are none of these: the prefix is much cheaper to test than the pattern.
        if not line.startswith("vllm:") or not (match := _LINE.fullmatch(line.rstrip())) or match[1] not in _WANTED:
            continue
        yield match[1], match[2] or "", _number(match[1], match[3])


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise Malformed(f"{name} is {text[:32]}")
    return value


def _bound(labels: str) -> float:
    found = _LE.search(labels)
    try:
        bound = float(found[1]) if found else math.nan
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise Malformed(f"{_TTFT} has a bucket without a bound")
    return bound


def _needed(found: dict[str, list[float]], name: str) -> list[float]:
    if name not in found:
        raise Malformed(f"{name} is missing")
    return found[name]
