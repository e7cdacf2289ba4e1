"""The twin shadow of a route: which sessions are copied to two pods, and how their latencies are compared (pure)."""

from typing import Annotated, Literal

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class TailRule(msgspec.Struct, frozen=True):
    """A latency of one stratum above which a response is in the tail."""

    stratum: str
    microseconds: Positive


class TwinLatencyRule(msgspec.Struct, frozen=True, rename="camel"):
    """How the latencies of a pair are compared: canary's with its twin's plus `max_slowdown` percent, and the tail."""

    measure: Literal["ttft", "itl", "e2e"]
    max_slowdown: Natural
    tail: tuple[TailRule, ...] = ()


class TwinShadowRule(msgspec.Struct, frozen=True, rename="camel"):
    """Copies of this share of the sessions go to a pod of `revision` and to its twin, a pod of `twin`, at once.

    `max_pairs_per_second`: at each gateway. `epoch`: a session gives one pair in each. `latencies`: none before the
    warm-up is over.
    """

    revision: str
    twin: str
    percentage: Annotated[int, msgspec.Meta(ge=0, le=100)]
    max_pairs_per_second: Positive
    epoch: Natural = 0
    latencies: tuple[TwinLatencyRule, ...] = ()
