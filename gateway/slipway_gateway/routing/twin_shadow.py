"""The twin shadow of a route: which sessions are copied to two pods, and how their latencies are compared (pure)."""

from typing import Annotated, Literal

import msgspec

from .tolerance import ToleranceRule

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Prompt = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class TailRule(msgspec.Struct, frozen=True):
    """A latency of one stratum above which a response is in the tail."""

    stratum: str
    microseconds: Positive


class TwinLatencyRule(msgspec.Struct, frozen=True, rename="camel"):
    """How the latencies of a pair are compared: canary's with its twin's plus `max_slowdown` percent, and the tail."""

    measure: Literal["ttft", "itl", "e2e"]
    max_slowdown: Natural
    tail: tuple[TailRule, ...] = ()


class ProbeRule(msgspec.Struct, frozen=True, rename="camel"):
    """Prompts of the model's owner, sent as pairs while clients' copies give fewer than `pairs_per_minute`.

    `pairs_per_minute`: at each gateway, clients' pairs included. `max_pairs`: most probes of each gateway in one
    attempt of a rollout.
    """

    path: Literal["/v1/chat/completions", "/v1/completions"]
    prompts: Annotated[tuple[Prompt, ...], msgspec.Meta(min_length=1, max_length=32)]
    pairs_per_minute: Annotated[int, msgspec.Meta(ge=1, le=600)]
    max_pairs: Positive
    max_tokens: Positive


class ScorerRule(msgspec.Struct, frozen=True, rename="camel"):
    """A server of the owner's that rates both responses of some pairs. It gets their contents.

    `percentage`: of the pairs. `margin_thousandths`: scores (0 to 1) that differ by no more count as equal.
    """

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    percentage: Annotated[int, msgspec.Meta(ge=1, le=100)]
    margin_thousandths: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=60)]


class TwinShadowRule(msgspec.Struct, frozen=True, rename="camel"):
    """Copies of this share of the sessions go to a pod of `revision` and to its twin, a pod of `twin`, at once.

    `max_pairs_per_second`: at each gateway. `epoch`: a session gives one counted pair in each epoch. `latencies`: empty
    until the warm-up is over. `reference`: set if there is no twin: `twin` gets only copies that `revision` fails.
    `quality`: texts and tokens of some pairs are compared. `scorer`: a server rates some pairs. `tolerance`: with which
    predictions of pairs are compared; None: they are not.
    """

    revision: str
    twin: str
    percentage: Annotated[int, msgspec.Meta(ge=0, le=100)]
    max_pairs_per_second: Positive
    epoch: Natural = 0
    latencies: tuple[TwinLatencyRule, ...] = ()
    probes: ProbeRule | None = None
    reference: Literal["OnFailure"] | None = None
    quality: bool = False
    scorer: ScorerRule | None = None
    tolerance: ToleranceRule | None = None
