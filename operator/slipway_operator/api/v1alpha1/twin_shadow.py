"""Twin shadows: what a step has, and what a run keeps of it. `slipway_contracts.twin_shadow` is what gateways get."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import AtMost, CelRule, implied_defaults
from slipway_contracts.api.types import ApiType, Int32, Int64
from slipway_contracts.twin_shadow import LONGEST_PROMPT, MOST_PER_MINUTE, MOST_PROMPTS, TwinShadow

MOST_CHARACTERS = 16384  # of all prompts of a step: the table that gateways get has them
BASELINE_POD = "BaselinePod"


@implied_defaults()
class StepProbes(ApiType):
    """Prompts of yours that gateways send as pairs where the copies of clients' requests give fewer than
    pairsPerMinute. So a model with little traffic can be judged. Probes are streams, with a seed for each pair. They
    are no requests of clients: they have no part in usage, limits, demand and idleness. A pass by probes speaks of
    these prompts."""

    prompts: Annotated[
        tuple[
            Annotated[str, Field(min_length=1, max_length=LONGEST_PROMPT, description="Prompt, or message of a user.")],
            ...,
        ],
        Field(min_length=1, max_length=MOST_PROMPTS),
        CelRule(
            f"self.map(prompt, prompt.size()).sum() <= {MOST_CHARACTERS}",
            f"the prompts of probes have at most {MOST_CHARACTERS} characters together: write shorter ones",
        ),
    ]
    """Prompts, which take turns. The more they are like those of clients, the more a pass says."""
    api: Literal["Chat", "Completions"] = "Chat"
    """Chat sends each prompt as the message of a user to /v1/chat/completions, Completions to /v1/completions."""
    pairs_per_minute: Annotated[Int32, Field(ge=1, le=MOST_PER_MINUTE)] = 60
    """Rate of the pairs at each gateway, copies of clients' requests included, that probes bring about."""
    max_pairs: Annotated[Int32, Field(ge=1, le=100000)] = 3000
    """Maximum number of probes at each gateway for one attempt of the rollout."""
    max_tokens: Annotated[Int32, Field(ge=1, le=4096)] = 64
    """Maximum number of tokens of a response."""


@implied_defaults()
class StepTwinShadow(ApiType):
    """Copies of whole sessions go to a pod of the new revision and to a baseline pod of stable at the same moment, and
    the analysis compares each pair of responses. Clients see none of them and never wait for them. In a canary it needs
    baselinePod, and it comes before the first setWeight above 0; in prePromotionAnalysis there are as many baseline
    pods as preview pods, within capacity.maxSurge. So no client is served by a revision that copies show to be bad. The
    metrics of kind PairedEvent decide, and no other compared ones."""

    percentage: Annotated[Int32, Field(ge=1, le=100)] | None = None
    """Percent of the sessions that are copied. If omitted, it is chosen such that a baseline pod is as busy as a pod of
    stable."""
    max_pairs_per_second: Annotated[Int32, Field(ge=1, le=1000)] = 10
    """Maximum rate of the pairs at each gateway."""
    probes: StepProbes | None = None
    reference: Literal["BaselinePod", "OnFailure"] = "BaselinePod"
    """What a response of the new revision is compared with. BaselinePod: with that of a baseline pod; without one the
    analysis ends as NoTwin. OnFailure: where there are no baseline pods, copies go to the new revision alone, and
    stable gets what the new revision fails. It needs no further pod and more copies, and latencies are not compared.
    A canary then needs no baselinePod."""


@dataclass(frozen=True, slots=True)
class FormerRate:
    """Bad events of stable before the run, which choose the bets on pairs."""

    metric: str
    """Name of the metric."""
    bad: Int64
    """Number of sessions with a bad event."""
    units: Int64
    """Number of sessions."""


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """Twin shadow of a run, which compares pairs of copies and no requests of clients."""

    former: Annotated[tuple[FormerRate, ...], AtMost(32)] = ()
    """Rates of stable at the start of the run."""
    open: Int64 = 0
    """Number of pairs that were sent and have not ended."""
    no_twin: str = ""
    """Reason why this attempt gets no baseline pods."""
    published: TwinShadow | None = None
    """Twin shadow of the routing table while the pods of both sides are ready, without its probes."""
    probed: bool = False
    """Whether probes are sent."""
    on_failure: bool = False
    """Whether there is no twin, and stable repeats what the new revision fails."""
    scoring: Int64 = 0
    """Number of pairs that a scorer has and that have no result yet."""


@dataclass(frozen=True, slots=True)
class PairSources:
    """Pairs of a twin shadow by their source."""

    users: Int64 = 0
    """Number of pairs that are copies of clients' requests."""
    probes: Int64 = 0
    """Number of pairs that are probes."""
    probes_bad_on_canary: Int64 = 0
    """Number of probes with a bad response of the new revision alone."""
    probes_bad_on_twin: Int64 = 0
    """Number of probes with a bad response of stable alone."""


@dataclass(frozen=True, slots=True)
class PairQuality:
    """Responses of the pairs of a twin shadow whose texts and tokens were compared."""

    texts: Int64 = 0
    """Number of pairs whose texts were compared."""
    texts_differ: Int64 = 0
    """Number of those with different texts. Two pods of one version may differ too."""
    tokens: Int64 = 0
    """Number of tokens of stable's responses that both sides scored, with one prefill each."""
    flips_on_canary: Int64 = 0
    """Number of these tokens that are not the first choice of the new revision."""
    flips_on_twin: Int64 = 0
    """Number of these tokens that are not the first choice of stable itself."""


@dataclass(frozen=True, slots=True)
class PairScores:
    """Pairs of a twin shadow that a scorer was to rate."""

    pairs: Int64 = 0
    """Number of pairs with a result."""
    lower_on_canary: Int64 = 0
    """Number of those in which the response of the new revision is the worse one by more than the margin."""
    lower_on_twin: Int64 = 0
    """Number of those in which the response of stable is."""
    canary_mean: float | None = None
    """Mean score of the new revision, where the scorer gives scores."""
    twin_mean: float | None = None
    """Mean score of stable on the same prompts."""
    unanswered: Int64 = 0
    """Number of pairs for which the scorer gave no response in time."""
    invalid: Int64 = 0
    """Number of pairs for which its response has no result, or of which one response cannot be rated."""
    dropped: Int64 = 0
    """Number of pairs that were not sent to it because gateways had no room for further calls."""
    blocked: Int64 = 0
    """Number of pairs that were not sent to it because gateways may not call it."""
