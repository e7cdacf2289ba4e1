"""The twin shadow of a route table: which sessions gateways copy to two pods, and what they compare."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import AtMost
from slipway_contracts.api.types import Int32, Int64

MOST_PROMPTS, LONGEST_PROMPT, MOST_PER_MINUTE = 32, 4096, 600
ON_FAILURE = "OnFailure"
PROBE_PATHS = {"Chat": "/v1/chat/completions", "Completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class TailThreshold:
    """Latency of one stratum above which a response is in the tail."""

    stratum: str
    """Stratum: requests of similar size and kind."""
    microseconds: Int64
    """Threshold in microseconds."""


@dataclass(frozen=True, slots=True)
class TwinLatency:
    """Comparison of one latency within the pairs of a twin shadow."""

    measure: str
    """Latency: ttft, itl or e2e."""
    max_slowdown: Int32
    """Percent by which the revision may be slower than its twin."""
    tail: Annotated[tuple[TailThreshold, ...], AtMost(16)] = ()
    """Thresholds of the tail. A stratum without a threshold has no tail."""


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


@dataclass(frozen=True, slots=True)
class PredictionTolerance:
    """Difference of two numbers that count as the same prediction. One of the two is enough."""

    relative_millionths: Int32
    """Millionths of the larger number."""
    absolute_billionths: Int64
    """Billionths of 1."""


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
