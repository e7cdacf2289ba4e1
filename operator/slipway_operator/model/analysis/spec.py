"""An AnalysisTemplate in its decided form: error rates, compared metrics, vetoes, metrics with a provider."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from slipway_contracts.twin_shadow import PredictionTolerance, TwinScorer
from slipway_operator.model.analysis.measure import Argument, Measure


class OnInconclusive(StrEnum):
    """What a rollout does when the analysis ends without a verdict."""

    PAUSE = "Pause"
    CONTINUE = "Continue"
    ABORT = "Abort"
    PROMOTE_IF = "PromoteIf"  # continue if the extra bad responses are proved to be few enough, else pause


WRONG_ANSWER = "WrongAnswer"  # of requests with feedback: the client reported a wrong answer
PREDICTION_DRIFT = "PredictionDrift"  # of classic models: the distribution of predictions differs from stable's
PREDICTION_DISAGREEMENT = "PredictionDisagreement"  # of a copy of a request: canary's prediction differs from stable's
COST_INCREASE = "CostIncrease"  # tokens or predictions of canary cost more than stable's
TOKENS_FLIP = "TokensFlip"  # tokens of stable's response that are not a server's first choice
# Events about the quality of responses, in pairs of which both ended well. They are no bad responses.
QUALITY_EVENTS = (TOKENS_FLIP, "LowerScore", PREDICTION_DISAGREEMENT)


class Kind(StrEnum):
    """The source of a metric's events."""

    BAD_EVENT = "BadEvent"  # of requests that were split at random
    PAIRED_EVENT = "PairedEvent"  # of pairs of a twin shadow: copies to canary and to a baseline pod at once
    PAIRED_DRIFT = "PairedDrift"  # of mirrored prompts with a response of canary and of a second stable pod


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric of an AnalysisTemplate.

    The ratio is canary's rate of bad events divided by stable's. A ratio up to `tolerate_ratio` is acceptable. A canary
    passes when its ratio is proved to be below `max_ratio`, or its own rate below `ok_below`; or, if given, when it has
    at most `max_extra` extra bad responses per 1,000, or a latency less than `max_slowdown` above stable's. The
    distributions of predictions may differ by a population stability index up to `max_psi`. For copies of requests, a
    share up to `max_disagreement` of canary's predictions, or of its first choices among tokens, may differ from
    stable's. Its tokens or predictions may cost more by the fraction `max_cost_increase`. `share` is the part of
    falseRollbackRate that this metric may spend. `latency` metrics are not counted during warm-up, nor while canary's
    pods have more load than stable's; meanwhile they let no canary pass. `dry_run` metrics are shown and decide
    nothing.

    Raises:
        ValueError: when the metric is invalid; the message is for the author of the template.
    """

    name: str
    event: str = ""
    kind: Kind = Kind.BAD_EVENT
    share: float = 0.0
    tolerate_ratio: float = 1.0
    max_ratio: float = 2.0
    ok_below: float | None = None
    max_extra: float | None = None
    max_slowdown: float | None = None
    max_psi: float | None = None
    max_disagreement: float | None = None
    max_cost_increase: float | None = None
    tolerance: PredictionTolerance | None = None
    latency: bool = False
    dry_run: bool = False
    scorer: TwinScorer | None = None

    @property
    def is_paired(self) -> bool:
        return self.kind is Kind.PAIRED_EVENT

    @property
    def of_feedback(self) -> bool:
        return self.event == WRONG_ANSWER

    @property
    def of_predictions(self) -> bool:
        return self.event == PREDICTION_DRIFT

    @property
    def of_cost(self) -> bool:
        return self.event == COST_INCREASE

    @property
    def of_agreement(self) -> bool:
        return self.event == PREDICTION_DISAGREEMENT

    @property
    def of_choices(self) -> bool:
        """Whether the metric bounds the share of tokens that stable chooses and canary does not."""
        return self.is_paired and self.event == TOKENS_FLIP and self.max_disagreement is not None

    def __post_init__(self) -> None:
        who = f"metric {self.name!r}:"
        if not 0 <= self.share <= 1:
            raise ValueError(f"{who} share is {self.share:g}; it is a part of falseRollbackRate, between 0 and 1")
        if not self.dry_run and self.share == 0:
            raise ValueError(f"{who} share is missing; give it a part of falseRollbackRate, or set dryRun: true")
        if not 0 < self.tolerate_ratio < self.max_ratio:
            raise ValueError(
                f"{who} tolerateRatio is {self.tolerate_ratio:g} and maxRatio {self.max_ratio:g}; "
                "tolerateRatio must be above 0 and below maxRatio"
            )
        if self.ok_below is not None and not 0 < self.ok_below < 1:
            raise ValueError(f"{who} okBelow is {self.ok_below:g}; it is a rate of bad events, between 0 and 1")


@dataclass(frozen=True, slots=True)
class Veto:
    """A symptom that rejects a canary at once, when the canary shows `limit` of it and stable does not."""

    name: str
    limit: float = 1.0


@dataclass(frozen=True, slots=True)
class MinSamples:
    """The least data with which a canary can pass. A rejection never waits for it."""

    canary_requests: int = 300
    warmup_seconds: int = 120
    pairs: int = 300  # of a twin shadow, before a canary can pass
    min_seconds: int = 0  # since the first request or pair


@dataclass(frozen=True, slots=True)
class AnalysisSpec:
    """An AnalysisTemplate: error rates that are guaranteed for the whole rollout, and the metrics.

    Raises:
        ValueError: when it is invalid; the message is for the author of the template.
    """

    metrics: tuple[MetricSpec, ...]
    false_rollback_rate: float = 0.01
    false_promote_rate: float = 0.05
    on_inconclusive: OnInconclusive = OnInconclusive.PAUSE
    promote_if_extra: float | None = None  # of PromoteIf: extra bad responses per 1,000
    min_samples: MinSamples = field(default_factory=MinSamples)
    vetoes: tuple[Veto, ...] = ()
    stale_seconds: int = 60
    max_load_difference: float = 0.25
    measured: tuple[Measure, ...] = ()  # metrics with a provider: thresholds, which no error rate covers
    arguments: tuple[Argument, ...] = ()

    def __post_init__(self) -> None:
        for name, rate in (
            ("falseRollbackRate", self.false_rollback_rate),
            ("falsePromoteRate", self.false_promote_rate),
        ):
            if not 0 < rate < 1:
                raise ValueError(f"{name} is {rate:g}; it must be above 0 and below 1, such as 0.01")
        names = [*(metric.name for metric in self.metrics), *(metric.name for metric in self.measured)]
        if len(set(names)) < len(names):
            raise ValueError("two metrics have the same name; name each once")
        if not self.gating and all(metric.dry_run for metric in self.measured):
            raise ValueError("no metric decides anything; give at least one a share and no dryRun")
        for paired, of_pairs in ((False, ""), (True, f" of kind {Kind.PAIRED_EVENT}")):
            shares = sum(metric.share for metric in self.gating if metric.is_paired == paired)
            # In binary floating point, ten times 0.1 is not exactly 1.
            if shares > 1 + 1e-9:
                raise ValueError(f"the shares of the metrics{of_pairs} add up to {shares:g}; they must not exceed 1")

    @property
    def gating(self) -> tuple[MetricSpec, ...]:
        """The compared metrics that decide: those without dryRun."""
        return tuple(metric for metric in self.metrics if not metric.dry_run)

    @property
    def bounded(self) -> MetricSpec | None:
        """The first compared metric that bounds extra bad responses; None without one."""
        bounds = (metric for metric in self.gating if metric.max_extra is not None)
        return next((metric for metric in bounds if metric.event not in (*QUALITY_EVENTS, WRONG_ANSWER)), None)

    @property
    def compares_mirrored(self) -> bool:
        """Whether a metric compares mirrored prompts, which gateways count at any weight, also 0."""
        return any(metric.kind is Kind.PAIRED_DRIFT for metric in self.metrics)

    @property
    def compares_texts(self) -> bool:
        """Whether a metric compares texts of responses, which differ anyway if the revisions' model weights do."""
        return self.compares_mirrored or any(metric.event == TOKENS_FLIP for metric in self.metrics)

    @property
    def compares_feedback(self) -> bool:
        """Whether a metric compares feedback, which clients send after the responses."""
        return any(metric.of_feedback for metric in self.metrics)

    @property
    def compares_predictions(self) -> bool:
        """Whether a metric compares the distributions of what both revisions predict."""
        return any(metric.of_predictions for metric in self.metrics)

    @property
    def cost(self) -> MetricSpec | None:
        """The metric that compares costs; None without one."""
        return next((metric for metric in self.metrics if metric.of_cost), None)

    def tolerance(self, *, paired: bool) -> PredictionTolerance | None:
        """The tolerance for predictions of pairs, else of mirrored requests; None if no metric compares these."""
        found = (metric.tolerance for metric in self.metrics if metric.of_agreement and metric.is_paired == paired)
        return next(found, None)

    @property
    def compares_pairs(self) -> bool:
        """Whether a metric compares pairs of a twin shadow. An analysis takes these or the others: see `part`."""
        return any(metric.is_paired for metric in self.metrics)

    @property
    def warmed(self) -> "AnalysisSpec":
        """The same spec without warm-up, for a canary that mirrored requests have warmed up already."""
        return replace(self, min_samples=replace(self.min_samples, warmup_seconds=0, min_seconds=0))

    @property
    def without_latencies(self) -> "AnalysisSpec":
        """The same spec for pairs without a twin: without metrics that need a twin's response.

        These are latencies, texts and predictions.

        Raises:
            ValueError: when nothing else decides.
        """
        kept = tuple(metric for metric in self.metrics if not (metric.latency or metric.event in QUALITY_EVENTS))
        if all(metric.dry_run for metric in kept):
            raise ValueError(
                "with twinShadow.reference OnFailure latencies, tokens, scores and predictions are not compared, and "
                "nothing else decides: add BadResponse with maxExtra, or baseline pods"
            )
        return replace(self, metrics=kept)

    def part(self, *, paired: bool) -> "AnalysisSpec":
        """Return the spec of one analysis: `paired` keeps the metrics of pairs, for a twin shadow; else the others.

        Raises:
            ValueError: when no kept metric decides.
        """
        kept = tuple(metric for metric in self.metrics if metric.is_paired == paired)
        decides = not all(metric.dry_run for metric in kept)
        if paired and not decides:
            raise ValueError(
                f"the step has twinShadow, and no metric of kind {Kind.PAIRED_EVENT} decides: add one, or write "
                "llm-release"
            )
        decides = decides or not all(metric.dry_run for metric in self.measured)
        if not paired and self.compares_pairs and not decides:
            raise ValueError(
                f"the analysis has no twinShadow, and only metrics of kind {Kind.PAIRED_EVENT} decide: add another "
                "metric, or write twinShadow in an analysis step"
            )
        return self if kept == self.metrics else replace(self, metrics=kept)


def of_slowdown(metric: str) -> str:
    """The counter name of latencies above a limit: for stable its median, for canary that plus the margin."""
    return f"{metric}/slowdown"


def of_gross(metric: str) -> str:
    """The counter name of latencies far above stable's, which count during the warm-up too."""
    return f"{metric}/gross"


def of_tail(metric: str) -> str:
    """The counter name of pairs by which leg has a latency above stable's quantile."""
    return f"{metric}/tail"


def of_withheld(metric: str) -> str:
    """The counter name of pairs that were sent or withheld."""
    return f"{metric}/withheld"


def of_probes(metric: str) -> str:
    """The counter name of pairs that are probes."""
    return f"{metric}/probes"


def of_texts(metric: str) -> str:
    """The counter name of pairs whose texts were compared."""
    return f"{metric}/texts"


def of_tokens(metric: str) -> str:
    """The counter name of tokens that both revisions of pairs scored."""
    return f"{metric}/tokens"


def of_changed(metric: str) -> str:
    """The counter name of the parts of stable's choices among tokens that canary does not choose, in millionths."""
    return f"{metric}/changed"


def of_marks(metric: str) -> str:
    """The counter name of the sums of scores, in thousandths."""
    return f"{metric}/marks"


def of_unscored(metric: str) -> str:
    """The counter name of pairs for a scorer, and of those for which it sent no response or an invalid one."""
    return f"{metric}/unscored"


def of_unsent(metric: str) -> str:
    """The counter name of pairs for a scorer, and of those that gateways did not send to it, by reason."""
    return f"{metric}/unsent"


def of_bin(metric: str, place: int) -> str:
    """The counter name of predictions in the bin `place`, among all predictions."""
    return f"{metric}/bin{place:02}"


def of_copies(metric: str) -> str:
    """The counter name of copies whose predictions, or tokens, were to be compared; failed and unread ones included."""
    return f"{metric}/copies"


def without_floor(metric: str) -> str:
    """The counter name of a metric's mirrored prompts without a response of a second stable pod."""
    return f"{metric}/no-floor"
