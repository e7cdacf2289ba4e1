"""AnalysisTemplate: by what a new revision is compared with stable, and what is measured of it.

Lower bounds of fractions are "above 0": the API server cuts a limit of 0.001 to 0 when the value is written as an
integer.
"""

from typing import Annotated, Literal

from pydantic import Field

from slipway_operator.api.markers import CelRule, Definition, PrinterColumn, custom_resource, rule
from slipway_operator.api.types import DURATION, ApiType, Int32
from slipway_operator.api.v1alpha1.provider import Provider, TemplateArgument


class TemplateMinSamples(ApiType):
    """What a new revision must have seen before it can pass. None of it delays a rejection."""

    canary_requests: Annotated[Int32, Field(ge=1, le=100000000)] = 300
    """Requests to the new revision, for each metric."""
    warmup_seconds: Annotated[Int32, Field(ge=0, le=86400)] = 120
    """Time from its first request on, in which latencies are not counted."""


@rule(
    "has(self.event) != has(self.provider)",
    "a metric either counts an event or asks a provider: write one of event and provider",
)
@rule(
    "!has(self.kind) || (self.kind == 'Threshold') == has(self.provider)",
    "kind Threshold goes with a provider, BadEvent and PairedDrift with an event: leave kind out",
)
@rule(
    "has(self.provider) || has(self.share) || (has(self.dryRun) && self.dryRun)",
    "a metric needs a share of falseRollbackRate: write share, or dryRun: true to only show it",
)
@rule(
    (
        "has(self.provider) || !has(self.kind) || (self.kind == 'PairedDrift') == (has(self.event) && self.event "
        "in ['AnswerDiffers', 'TokensFlip'])"
    ),
    "AnswerDiffers and TokensFlip go with kind: PairedDrift, and no other event does: leave kind out",
)
@rule(
    "!has(self.provider) || (!has(self.share) && !has(self.okBelow))",
    "a metric with a provider has no share and no okBelow: its conditions decide, and no error rate covers them",
)
@rule(
    "!has(self.provider) || has(self.provider.job) || has(self.successCondition) || has(self.failureCondition)",
    "a metric with provider prometheus or web needs a condition: write successCondition, failureCondition or both",
)
@rule(
    ("!(has(self.provider) && has(self.provider.job)) || (!has(self.successCondition) && !has(self.failureCondition))"),
    "a job succeeds or fails by itself: remove successCondition and failureCondition",
)
@rule(
    (
        "has(self.provider) || !(has(self.interval) || has(self.initialDelay) || has(self.count) || "
        "has(self.successCondition) || has(self.failureCondition) || has(self.failureLimit) || "
        "has(self.inconclusiveLimit) || has(self.consecutiveErrorLimit) || has(self.consecutiveSuccessLimit))"
    ),
    (
        "interval, initialDelay, count, conditions and limits belong to a metric with a provider: remove them, "
        "or write provider"
    ),
)
@rule(
    "!has(self.count) || self.count == 1 || has(self.interval)",
    "count above 1 needs interval: write how long is between two measurements, for example 1m",
)
@rule(
    (
        "!has(self.provider) || (!has(self.count) && has(self.interval)) || (has(self.count) ? self.count : 1) > "
        "(has(self.failureLimit) ? self.failureLimit : 0)"
    ),
    "count must be above failureLimit: so few measurements could never fail",
)
@rule(
    (
        "!has(self.provider) || (!has(self.count) && has(self.interval)) || (has(self.count) ? self.count : 1) > "
        "(has(self.inconclusiveLimit) ? self.inconclusiveLimit : 0)"
    ),
    "count must be above inconclusiveLimit: so few measurements could never end inconclusive",
)
@rule(
    "self.tolerateRatio < self.maxRatio",
    (
        "tolerateRatio must be below maxRatio: the first is where nothing is wrong yet, the second what must be "
        "ruled out"
    ),
)
class TemplateMetric(ApiType):
    """One metric. With an event: the rate of its bad events on the new revision is compared with that on stable.
    With a provider: somebody is asked, and conditions say what is good."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Its name in status and messages."""
    kind: (
        Annotated[
            str,
            Field(max_length=63),
            CelRule(
                "self in ['BadEvent', 'Threshold', 'PairedDrift']",
                "kind is BadEvent, Threshold or PairedDrift: leave it out, for event and provider say which",
            ),
        ]
        | None
    ) = None
    """How it decides; known from event and provider, so it can be left out. BadEvent counts requests that were split
    at random, PairedDrift mirrored requests that the new revision and a second stable pod answered too, Threshold
    asks a provider."""
    event: (
        Annotated[
            str,
            Field(max_length=128),
            CelRule(
                (
                    "self in ['FirstAttemptError', 'EmptyAnswer', 'TruncatedAnswer', 'RepetitiveAnswer', "
                    "'NonFiniteLogits', 'InvalidJSON', 'HungAnswer', 'AnswerDiffers', 'TokensFlip'] || "
                    "self.matches('^Slower\\\\((ttft|itl|e2e), *stable\\\\.p[1-9][0-9]?\\\\)$')"
                ),
                (
                    "event is FirstAttemptError, EmptyAnswer, TruncatedAnswer, RepetitiveAnswer, NonFiniteLogits, "
                    "InvalidJSON, HungAnswer, AnswerDiffers, TokensFlip or one like Slower(ttft, stable.p95)"
                ),
            ),
        ]
        | None
    ) = None
    """What is bad: FirstAttemptError, EmptyAnswer, TruncatedAnswer, RepetitiveAnswer, NonFiniteLogits, InvalidJSON
    (asked for and broken, or arguments of a tool), HungAnswer (also an error), or a latency above a quantile of
    stable's own such as Slower(ttft, stable.p95); ttft, itl and e2e are known. Of mirrored requests AnswerDiffers
    (another text than stable's) or TokensFlip (tokens of stable's answer that are not the first choice)."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The part of falseRollbackRate that this metric may spend; more is faster for it and slower for the others."""
    tolerate_ratio: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Up to this ratio of the two rates nothing is wrong."""
    max_ratio: Annotated[float, Field(gt=0, le=1000)] = 2.0
    """A revision passes when the ratio is proved to be below this."""
    ok_below: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """It passes as well when its own rate is proved to be below this."""
    provider: Provider | None = None
    success_condition: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """When a measurement is good, over its result; for example result[0] < 0.05. Alone it also says what fails."""
    failure_condition: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """When a measurement fails. Alone it also says what is good; what neither of both calls good or bad is
    inconclusive."""
    interval: (
        Annotated[
            str,
            Field(min_length=2, max_length=32),
            CelRule(DURATION, "interval is written in hours, minutes and seconds: write for example 30s or 5m"),
            CelRule(
                f"!{DURATION} || duration(self) >= duration('5s')",
                "interval must be 5s or longer: write for example 30s",
            ),
        ]
        | None
    ) = None
    """Time between two measurements, at least 5s. Without it one is taken."""
    initial_delay: (
        Annotated[
            str,
            Field(min_length=2, max_length=32),
            CelRule(DURATION, "initialDelay is written in hours, minutes and seconds: write for example 30s or 5m"),
        ]
        | None
    ) = None
    """Time before the first one."""
    count: Annotated[Int32, Field(ge=1, le=100000)] | None = None
    """How many are taken. Without it, and with an interval, as many as the analysis has time for."""
    failure_limit: Annotated[Int32, Field(ge=-1, le=100000)] | None = None
    """How many may fail, 0 without it. One more rejects the revision; -1 lets all fail."""
    inconclusive_limit: Annotated[Int32, Field(ge=0, le=100000)] | None = None
    """How many may be inconclusive, 0 without it. One more ends the metric without a verdict."""
    consecutive_error_limit: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """How many errors in a row are borne, 4 without it. One more rejects the revision."""
    consecutive_success_limit: Annotated[Int32, Field(ge=0, le=100000)] | None = None
    """How many good ones in a row end it, before count does. 0, and without it, none do."""
    dry_run: bool | None = None
    """Show it and decide nothing by it."""


class TemplateVeto(ApiType):
    """One veto."""

    name: Annotated[
        str,
        Field(max_length=63),
        CelRule(
            "self in ['PodCrashLoop', 'CanaryCutOff', 'CanaryUnavailable']",
            (
                "a veto is PodCrashLoop, CanaryCutOff or CanaryUnavailable in this release: SelfTestFailed and "
                "safetyFlagRate do not exist yet, and non-finite logits are a metric"
            ),
        ),
    ]
    """PodCrashLoop counts restarts of the revision's containers since the analysis began. CanaryCutOff counts
    gateways that sent it nothing more because it fails hard. CanaryUnavailable counts whole minutes in a row
    without a ready pod, for a fault of its own: not while its pods wait for a node, or are fresh ones."""
    limit: Annotated[Int32, Field(ge=1, le=1000)] = 1
    """How much of it rejects."""


@rule(
    "self.metrics.exists(m, !has(m.dryRun) || !m.dryRun)",
    "no metric of spec.metrics decides anything: give at least one a share and no dryRun",
)
@rule(
    "self.metrics.filter(m, has(m.share) && !(has(m.dryRun) && m.dryRun)).map(m, m.share).sum() <= 1.000000001",
    "the shares of spec.metrics must add up to 1 at most: they are parts of falseRollbackRate",
)
class AnalysisTemplateSpec(ApiType):
    """Error rates that are promised for a whole rollout, and the metrics that share them."""

    false_rollback_rate: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """The chance that a rollout of a healthy revision is rejected, over all metrics, steps and looks."""
    false_promote_rate: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """The chance that a revision passes of which a metric is worse than its maxRatio."""
    on_inconclusive: Literal["Pause", "Continue", "Abort"] = "Pause"
    """What happens when the time of an analysis is over without a verdict."""
    stale_seconds: Annotated[Int32, Field(ge=5, le=86400)] = 60
    """How long a ready gateway may not answer before there is no verdict."""
    max_load_difference: Annotated[float, Field(gt=0, le=1000)] = 0.25
    """How much the weight per ready pod may differ between the two, as a part: 0.25 is a quarter. Where a pod of the
    new revision has that much more, latencies are not counted and nobody passes; where it has that much less, the
    verdict says that they were compared in its favour. While a pod of stable has one request in progress or
    fewer, none is busy."""
    min_samples: TemplateMinSamples = TemplateMinSamples()
    args: Annotated[
        tuple[TemplateArgument, ...],
        Field(max_length=16),
        CelRule(
            "self.all(a, self.exists_one(o, o.name == a.name))",
            "the names of spec.args must differ: give each argument a name of its own",
        ),
    ] = ()
    """What stands for {{args.NAME}} in the metrics with a provider."""
    metrics: Annotated[
        tuple[TemplateMetric, ...],
        Field(min_length=1, max_length=32),
        CelRule(
            "self.all(m, self.exists_one(o, o.name == m.name))",
            "the names of spec.metrics must differ: give each metric a name of its own",
        ),
    ]
    """What is compared with stable (event), and what is measured by thresholds (provider)."""
    vetoes: Annotated[
        tuple[TemplateVeto, ...],
        Field(max_length=8),
        CelRule(
            "self.all(v, self.exists_one(o, o.name == v.name))",
            "each veto stands in spec.vetoes once: remove the others of its name",
        ),
    ] = ()
    """Symptoms that reject a revision at once, when it shows them and stable does not."""


@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural="analysistemplates",
        short_names=("atmpl",),
        categories=("slipway",),
        columns=(
            PrinterColumn(
                "False-Rollback",
                "number",
                ".spec.falseRollbackRate",
                "Healthy revisions that are rejected, at most, of all.",
            ),
            PrinterColumn(
                "False-Promote",
                "number",
                ".spec.falsePromoteRate",
                "Revisions worse than a margin that pass, at most, of all such.",
            ),
            PrinterColumn(
                "On-Inconclusive",
                "string",
                ".spec.onInconclusive",
                "What happens without a verdict: Pause, Continue or Abort.",
            ),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
            PrinterColumn("Metrics", "string", ".spec.metrics[*].name", "What is compared.", wide=True),
        ),
    )
)
class AnalysisTemplate(ApiType):
    """By what a new revision is compared with the stable one that serves beside it."""

    spec: AnalysisTemplateSpec
