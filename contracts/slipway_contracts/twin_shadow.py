"""The twin shadow of a route table: which sessions gateways copy to two pods, and what they compare."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import AtMost
from slipway_contracts.api.types import Int32, Int64, strict

MOST_PROMPTS, LONGEST_PROMPT, MOST_PER_MINUTE = 32, 4096, 600
LONGEST_URL = 2048
ON_FAILURE = "OnFailure"
MEASURES = ("ttft", "itl", "e2e")
PROBE_PATHS = {"Chat": "/v1/chat/completions", "Completions": "/v1/completions"}


@strict
@dataclass(frozen=True, slots=True)
class TailThreshold:
    """Latency of one stratum above which a response is in the tail."""

    stratum: str
    """Stratum: requests of similar size and kind."""
    microseconds: Int64
    """Threshold in microseconds."""


@strict
@dataclass(frozen=True, slots=True)
class TwinLatency:
    """Comparison of one latency within the pairs of a twin shadow."""

    measure: str
    """Latency: ttft, itl or e2e."""
    max_slowdown: Int32
    """Percent by which the revision may be slower than its twin."""
    tail: Annotated[tuple[TailThreshold, ...], AtMost(16)] = ()
    """Thresholds of the tail. A stratum without a threshold has no tail."""


@strict
@dataclass(frozen=True, slots=True)
class TwinProbes:
    """Prompts that are sent as pairs where the copies give fewer. They are no requests of clients."""

    path: str
    """Path of the requests: /v1/chat/completions or /v1/completions."""
    prompts: Annotated[tuple[Annotated[str, Field(description="Prompt.")], ...], AtMost(MOST_PROMPTS)]
    """Prompts, which take turns."""
    pairs_per_minute: Int32
    """Rate of the pairs at each gateway, copies included, that probes bring about."""
    max_pairs: Int32
    """Maximum number of probes at each gateway for one attempt."""
    max_tokens: Int32
    """Maximum number of tokens of a response."""


@strict
@dataclass(frozen=True, slots=True)
class TwinScorer:
    """Server that rates both responses of some pairs. Gateways call it if their administrator listed its host."""

    url: str
    """URL of the calls."""
    percentage: Int32
    """Percent of the pairs that are rated."""
    margin_thousandths: Int32
    """Thousandths by which a score may be lower without being worse."""
    timeout_seconds: Int32
    """Timeout of a call in seconds."""


@strict
@dataclass(frozen=True, slots=True)
class PredictionTolerance:
    """Difference of two numbers that count as the same prediction. One of the two is enough."""

    relative_millionths: Int32
    """Millionths of the larger number."""
    absolute_billionths: Int64
    """Billionths of 1."""


@strict
@dataclass(frozen=True, slots=True)
class TwinShadow:
    """Copies of whole sessions, which go to a pod of a revision and to a twin, a stable pod, at the same moment."""

    revision: str
    """Revision under test."""
    twin: str
    """Stable revision. Its baseline pods get the copies if there are any."""
    percentage: Int32
    """Percent of the sessions that are copied."""
    max_pairs_per_second: Int32
    """Maximum rate of the pairs at each gateway."""
    epoch: Int32 = 0
    """Number of the epoch. A session gives one pair in each epoch."""
    latencies: Annotated[tuple[TwinLatency, ...], AtMost(3)] = ()
    """Comparison of latencies. Empty until the warm-up is over."""
    probes: TwinProbes | None = None
    quality: bool | None = None
    """Whether the texts and tokens of some pairs are compared."""
    reference: str | None = None
    """OnFailure: without a twin. Copies go to the revision alone, and a stable pod gets what it fails."""
    scorer: TwinScorer | None = None
    tolerance: PredictionTolerance | None = None


def shadow_refusal(shadow: TwinShadow) -> str:
    """Why gateways do not use a table with this twin shadow, with the path of its field; empty where they do."""
    return next(filter(None, _refusals(shadow)), "")


def _refusals(shadow: TwinShadow) -> Iterator[str]:
    yield outside("twinShadow.percentage", shadow.percentage, 0, 100)
    yield outside("twinShadow.maxPairsPerSecond", shadow.max_pairs_per_second, 1)
    yield outside("twinShadow.epoch", shadow.epoch, 0)
    yield _none_of("twinShadow.reference", shadow.reference, (None, ON_FAILURE))
    for latency in shadow.latencies:
        yield _none_of("twinShadow.latencies.measure", latency.measure, MEASURES)
        yield outside("twinShadow.latencies.maxSlowdown", latency.max_slowdown, 0)
        yield from (outside("twinShadow.latencies.tail.microseconds", tail.microseconds, 1) for tail in latency.tail)
    if shadow.probes is not None:
        yield from _of_probes("twinShadow.probes", shadow.probes)
    if shadow.scorer is not None:
        yield from _of_scorer("twinShadow.scorer", shadow.scorer)
    yield from tolerance_refusals("twinShadow.tolerance", shadow.tolerance)


def _of_probes(at: str, probes: TwinProbes) -> Iterator[str]:
    yield _none_of(f"{at}.path", probes.path, PROBE_PATHS.values())
    yield outside(f"{at}.prompts: their number", len(probes.prompts), 1, MOST_PROMPTS)
    yield from (outside(f"{at}.prompts: the length", len(prompt), 1, LONGEST_PROMPT) for prompt in probes.prompts)
    yield outside(f"{at}.pairsPerMinute", probes.pairs_per_minute, 1, MOST_PER_MINUTE)
    yield outside(f"{at}.maxPairs", probes.max_pairs, 1)
    yield outside(f"{at}.maxTokens", probes.max_tokens, 1)


def _of_scorer(at: str, scorer: TwinScorer) -> Iterator[str]:
    yield outside(f"{at}.url: the length", len(scorer.url), 1, LONGEST_URL)
    yield outside(f"{at}.percentage", scorer.percentage, 1, 100)
    yield outside(f"{at}.marginThousandths", scorer.margin_thousandths, 0, 1000)
    yield outside(f"{at}.timeoutSeconds", scorer.timeout_seconds, 1, 60)


def tolerance_refusals(at: str, tolerance: PredictionTolerance | None) -> Iterator[str]:
    """What gateways refuse in a tolerance, if there is one."""
    if tolerance is not None:
        yield outside(f"{at}.relativeMillionths", tolerance.relative_millionths, 0, 1_000_000)
        yield outside(f"{at}.absoluteBillionths", tolerance.absolute_billionths, 0)


def outside(at: str, value: int, least: int, most: int | None = None) -> str:
    """What is wrong with a number that is not within these bounds; empty where it is."""
    if value < least or (most is not None and value > most):
        return f"{at} must be {f'at least {least}' if most is None else f'from {least} to {most}'}, and is {value}"
    return ""


def _none_of(at: str, value: str | None, valid: Collection[str | None]) -> str:
    return "" if value in valid else f"{at} must be one of {', '.join(filter(None, valid))}, and is {value!r}"
