"""AnalysisTemplate: comparisons of a new revision with stable, and measurements by providers.

Lower bounds of fractions are "above 0": the API server cuts a limit of 0.001 to 0 when the value is written as an
integer.
"""

from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import CelRule, Definition, PrinterColumn, custom_resource, rule
from slipway_contracts.api.types import DURATION, ApiType, Int32
from slipway_operator.api.v1alpha1.provider import (
    PromoteIf,
    Provider,
    TemplateArgument,
    TemplateMinSamples,
    TemplateScorer,
    TemplateTolerance,
    TemplateVeto,
)


@rule(
    "has(self.event) != has(self.provider)",
    "a metric either counts an event or queries a provider: write one of event and provider",
)
@rule(
    "!has(self.kind) || (self.kind == 'Threshold') == has(self.provider)",
    "kind Threshold goes with a provider, BadEvent, PairedEvent and PairedDrift with an event: leave kind out",
)
@rule(
    "has(self.provider) || has(self.share) || (has(self.dryRun) && self.dryRun)",
    "a metric needs a share of falseRollbackRate: write share, or dryRun: true to only show it",
)
@rule(
    (
        "has(self.provider) || !has(self.kind) || (self.kind == 'PairedDrift') == (has(self.event) && self.event "
        "in ['AnswerDiffers', 'TokensFlip', 'PredictionDisagreement']) || (self.kind == 'PairedEvent' && "
        "self.event in ['TokensFlip', 'PredictionDisagreement'])"
    ),
    (
        "AnswerDiffers, TokensFlip and PredictionDisagreement go with kind: PairedDrift, and no other event does: "
        "leave kind out; TokensFlip and PredictionDisagreement also go with kind: PairedEvent"
    ),
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
    (
        "!has(self.maxExtra) || (has(self.event) && !self.event.startsWith('Slower') && (!(self.event in "
        "['AnswerDiffers', 'TokensFlip', 'PredictionDisagreement']) || (has(self.kind) && self.kind == 'PairedEvent' "
        "&& self.event == 'TokensFlip')))"
    ),
    (
        "maxExtra goes with an event of split requests or of pairs that is no latency: write event: BadResponse, or "
        "maxSlowdown for a latency"
    ),
)
@rule(
    "!has(self.maxSlowdown) || (has(self.event) && self.event.startsWith('Slower'))",
    "maxSlowdown goes with a latency: write an event like Slower(ttft, stable.p95), or maxExtra for bad responses",
)
@rule(
    (
        "has(self.scorer) == (has(self.event) && self.event == 'LowerScore') && "
        "(!has(self.scorer) || (has(self.kind) && self.kind == 'PairedEvent'))"
    ),
    "event LowerScore, kind PairedEvent and scorer go together: write all three of them, or none",
)
@rule(
    "!has(self.kind) || self.kind == 'BadEvent' || !has(self.event) || "
    "!(self.event in ['WrongAnswer', 'PredictionDrift'])",
    "WrongAnswer and PredictionDrift count split requests, and no pairs or mirrored requests: leave kind out",
)
@rule(
    "!(has(self.event) && self.event == 'PredictionDrift') ? !has(self.maxPsi) : !has(self.okBelow) && "
    "(has(self.maxPsi) || (has(self.dryRun) && self.dryRun)) && self.tolerateRatio == 1.0 && self.maxRatio == 2.0 && "
    "!has(self.maxExtra)",
    "PredictionDrift is a report with dryRun: true, and rejects with maxPsi, which no other event has: remove the rest",
)
@rule(
    "!(has(self.event) && self.event == 'PredictionDisagreement') ? !has(self.tolerance) && (!has(self.maxDisagreement)"
    " || (has(self.event) && self.event == 'TokensFlip' && has(self.kind) && self.kind == 'PairedEvent' && "
    "!has(self.maxExtra))) : !has(self.okBelow) && (has(self.maxDisagreement) || (has(self.dryRun) && self.dryRun)) && "
    "self.tolerateRatio == 1.0 && self.maxRatio == 2.0",
    "PredictionDisagreement is a report with dryRun: true, and decides with maxDisagreement, which TokensFlip of kind "
    "PairedEvent may have in the place of maxExtra; no other event has it, or tolerance: remove the rest",
)
@rule(
    "!(has(self.event) && self.event == 'CostIncrease') ? !has(self.maxCostIncrease) : !has(self.okBelow) && "
    "!has(self.maxExtra) && (has(self.maxCostIncrease) || (has(self.dryRun) && self.dryRun)) && "
    "self.tolerateRatio == 1.0 && self.maxRatio == 2.0 && (!has(self.kind) || self.kind == 'BadEvent')",
    "CostIncrease is a report with dryRun: true, and decides with maxCostIncrease, which no other event has: remove "
    "the rest",
)
@rule(
    "!(has(self.okBelow) && (has(self.maxExtra) || has(self.maxSlowdown)))",
    "a metric passes by okBelow and maxRatio, or by maxExtra or maxSlowdown: remove okBelow",
)
@rule(
    (
        "!has(self.kind) || self.kind != 'PairedEvent' || (self.tolerateRatio == 1.0 && self.maxRatio == 2.0 && "
        "!has(self.okBelow))"
    ),
    "a metric of kind PairedEvent passes by maxExtra or maxSlowdown: remove tolerateRatio, maxRatio and okBelow",
)
@rule(
    (
        "!has(self.kind) || self.kind != 'PairedEvent' || !has(self.event) || !self.event.startsWith('Slower') || "
        "has(self.maxSlowdown)"
    ),
    "a latency of kind PairedEvent is compared with that of the twin: write maxSlowdown, for example 0.15",
)
@rule(
    "self.tolerateRatio < self.maxRatio",
    (
        "tolerateRatio must be below maxRatio: the first is where nothing is wrong yet, the second what must be "
        "ruled out"
    ),
)
class TemplateMetric(ApiType):
    """Metric of the analysis. With event, the rate of bad events of the new revision is compared with that of stable.
    With provider, a value is measured, and conditions define a good value."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the metric in the status and in messages."""
    kind: (
        Annotated[
            str,
            Field(max_length=63),
            CelRule(
                "self in ['BadEvent', 'Threshold', 'PairedDrift', 'PairedEvent']",
                (
                    "kind is BadEvent, Threshold, PairedDrift or PairedEvent: write PairedEvent for pairs of a twin "
                    "shadow, and leave it out otherwise, because it follows from event and provider"
                ),
            ),
        ]
        | None
    ) = None
    """Kind of the metric. Except for PairedEvent it follows from event and provider and can be omitted. BadEvent counts
    requests that were split at random. PairedEvent counts pairs of a twin shadow: it decides in analysis steps with
    twinShadow, and the other metrics with an event decide in all other analyses. PairedDrift counts mirrored requests
    that the new revision and a second stable pod both answered. Threshold measures with a provider."""
    event: (
        Annotated[
            str,
            Field(max_length=128),
            CelRule(
                (
                    "self in ['BadResponse', 'FirstAttemptError', 'EmptyAnswer', 'TruncatedAnswer', "
                    "'RepetitiveAnswer', 'NonFiniteLogits', 'InvalidJSON', 'HungAnswer', 'BlockedAnswer', "
                    "'RedactedAnswer', 'AnswerDiffers', 'TokensFlip', 'LowerScore', 'WrongAnswer', "
                    "'PredictionDrift', 'PredictionDisagreement', 'FellBack', 'CostIncrease'] || "
                    "self.matches('^Slower\\\\((ttft|itl|e2e), *stable\\\\.p[1-9][0-9]?\\\\)$')"
                ),
                (
                    "event is BadResponse, FirstAttemptError, EmptyAnswer, TruncatedAnswer, RepetitiveAnswer, "
                    "NonFiniteLogits, InvalidJSON, HungAnswer, BlockedAnswer, RedactedAnswer, AnswerDiffers, "
                    "TokensFlip, LowerScore, WrongAnswer, PredictionDrift, PredictionDisagreement, FellBack, "
                    "CostIncrease or one like Slower(ttft, stable.p95)"
                ),
            ),
        ]
        | None
    ) = None
    """Event that counts as bad: FirstAttemptError, EmptyAnswer, TruncatedAnswer, RepetitiveAnswer, NonFiniteLogits,
    InvalidJSON (requested JSON, or arguments of a tool call, that cannot be parsed), HungAnswer (which also counts as
    FirstAttemptError), BlockedAnswer (by a guard), RedactedAnswer (likewise), BadResponse (any of these except
    TruncatedAnswer and RedactedAnswer), or a latency above a quantile of stable's own latencies, such as Slower(ttft,
    stable.p95), for ttft, itl and e2e. For mirrored requests: AnswerDiffers (a text other than stable's) or TokensFlip
    (tokens of stable's answer that are not the first choice). Of pairs, TokensFlip is more than 1 % of them, or with
    maxDisagreement the share of them, and LowerScore a response that the scorer rates lower than the other one. Of
    feedback of clients, WrongAnswer is an answer that they found to be wrong: among sessions with feedback, those with
    a wrong one. FellBack is a request that went to a fallback of spec.traffic or of a ModelRoute, whatever the reason.
    Gateways take feedback at POST /v1/feedback while a rollout has a template with it. PredictionDrift compares what
    classic models predict, labels or numbers, by their distributions. PredictionDisagreement is a mirrored request for
    which the new revision predicts something else than stable; with kind PairedEvent, a pair of which it does.
    CostIncrease compares what a million generated tokens, or predictions, cost, by the prices of the operator."""
    scorer: TemplateScorer | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of falseRollbackRate that the metric may use. With a larger share it is decided faster, and other metrics
    slower."""
    tolerate_ratio: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Ratio of the rate of the new revision to that of stable up to which the new revision is acceptable."""
    max_ratio: Annotated[float, Field(gt=0, le=1000)] = 2.0
    """The new revision passes when the ratio is proved to be below this value."""
    ok_below: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """The new revision also passes when its own rate is proved to be below this value."""
    max_extra: Annotated[float, Field(gt=0, le=500)] | None = None
    """The new revision passes when it is proved to give fewer extra bad responses per 1,000 than this, compared with
    stable. It replaces maxRatio and okBelow. In a template in which BadResponse has maxExtra, metrics of the events
    that BadResponse includes need no proof of their own: they can only reject."""
    max_slowdown: Annotated[float, Field(ge=0.1, le=10)] | None = None
    """The new revision passes when its latency is proved to be less than this fraction above stable's: 0.15 is 15 %.
    The proof covers the median, and that at most 5 points more of its requests are above the quantile of event. Of
    pairs, the median is that of the latency divided by the twin's, and only whole percents are allowed. It replaces
    maxRatio."""
    max_psi: Annotated[float, Field(gt=0, le=10)] | None = None
    """Population stability index, of predictions, up to which the new revision is not rejected for them."""
    max_disagreement: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of mirrored requests or pairs up to which another prediction than stable's is acceptable: 0.05 is 5 %. The
    new revision is rejected when its share is proved to be above it, and passes when it is proved to be below. Of
    TokensFlip it is the share of the tokens that stable would choose, in the mean over the responses, up to which the
    new revision may choose others. It decides for other weights too."""
    max_cost_increase: Annotated[float, Field(gt=0, le=10)] | None = None
    """Fraction by which generated tokens, or predictions, may cost more than stable's: 0.1 is 10 %. The new revision is
    rejected when it is proved to cost more than that in most minutes, and passes when it is proved not to."""
    tolerance: TemplateTolerance | None = None
    provider: Provider | None = None
    success_condition: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Condition for a successful measurement, as an expression over result, for example result[0] < 0.05. Without
    failureCondition, other measurements are failed."""
    failure_condition: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Condition for a failed measurement, as an expression over result. Without successCondition, other measurements
    are successful. With both, measurements that meet neither are inconclusive."""
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
    """Time between two measurements, at least 5s. If omitted, one measurement is taken."""
    initial_delay: (
        Annotated[
            str,
            Field(min_length=2, max_length=32),
            CelRule(DURATION, "initialDelay is written in hours, minutes and seconds: write for example 30s or 5m"),
        ]
        | None
    ) = None
    """Time before the first measurement."""
    count: Annotated[Int32, Field(ge=1, le=100000)] | None = None
    """Number of measurements; errors are not counted. If omitted with an interval, measurements continue as long as the
    analysis lasts."""
    failure_limit: Annotated[Int32, Field(ge=-1, le=100000)] | None = None
    """Maximum number of failed measurements. One more rejects the revision. Default is 0. -1 means no limit."""
    inconclusive_limit: Annotated[Int32, Field(ge=0, le=100000)] | None = None
    """Maximum number of inconclusive measurements. One more ends the metric without a verdict. Default is 0."""
    consecutive_error_limit: Annotated[Int32, Field(ge=0, le=100)] | None = None
    """Maximum number of consecutive errors. One more rejects the revision. Default is 4."""
    consecutive_success_limit: Annotated[Int32, Field(ge=0, le=100000)] | None = None
    """Number of consecutive successful measurements that ends the metric before count is reached. Default is 0, which
    disables this limit."""
    dry_run: bool | None = None
    """When true, the metric is shown and has no effect on the verdict."""


@rule(
    "self.metrics.exists(m, !has(m.dryRun) || !m.dryRun)",
    "no metric of spec.metrics decides anything: give at least one a share and no dryRun",
)
@rule(
    (
        "self.metrics.filter(m, has(m.share) && !(has(m.dryRun) && m.dryRun) && !(has(m.kind) && m.kind == "
        "'PairedEvent')).map(m, m.share).sum() <= 1.000000001"
    ),
    "the shares of spec.metrics must add up to 1 at most: they are parts of falseRollbackRate",
)
@rule(
    (
        "self.metrics.filter(m, has(m.share) && !(has(m.dryRun) && m.dryRun) && has(m.kind) && m.kind == "
        "'PairedEvent').map(m, m.share).sum() <= 1.000000001"
    ),
    "the shares of the metrics of kind PairedEvent must add up to 1 at most: they are parts of falseRollbackRate",
)
@rule(
    (
        "self.metrics.all(m, !has(m.kind) || m.kind != 'PairedEvent' || has(m.maxExtra) || has(m.maxSlowdown) || "
        "has(m.maxDisagreement) || (has(m.dryRun) && m.dryRun) || (has(m.event) && !(m.event in ['TruncatedAnswer', "
        "'RedactedAnswer', 'TokensFlip', 'LowerScore']) && self.metrics.exists(one, has(one.kind) && "
        "one.kind == 'PairedEvent' && has(one.event) && one.event == 'BadResponse' && has(one.maxExtra) && "
        "!(has(one.dryRun) && one.dryRun))))"
    ),
    (
        "a metric of kind PairedEvent could never pass: give it maxExtra, or give one of event: BadResponse maxExtra, "
        "which covers all other events except TruncatedAnswer and RedactedAnswer"
    ),
)
@rule(
    "self.metrics.all(m, !has(m.event) || m.event != 'FellBack' || !has(m.kind) || m.kind == 'BadEvent')",
    "FellBack counts split requests: leave kind out",
)
@rule(
    "(self.onInconclusive == 'PromoteIf') == has(self.promoteIf)",
    "onInconclusive: PromoteIf and promoteIf go together: write promoteIf: {maxExtra: 30}, or another onInconclusive",
)
@rule(
    "!has(self.promoteIf) || self.metrics.exists(m, has(m.maxExtra))",
    "promoteIf needs a bound to compare with: give a metric of spec.metrics maxExtra",
)
class AnalysisTemplateSpec(ApiType):
    """Error rates that hold for a whole rollout, and the metrics that share them."""

    false_rollback_rate: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """Maximum probability that a rollout of a healthy revision is rejected, over all metrics, steps and readings. It
    covers neither metrics with a provider nor vetoes."""
    false_promote_rate: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Maximum probability that a revision passes although one of its metrics is worse than maxRatio."""
    on_inconclusive: Literal["Pause", "Continue", "Abort", "PromoteIf"] = "Pause"
    """Action when an analysis ends without a verdict. Pause waits for a promotion, Continue goes on to the next step,
    Abort rejects the revision. PromoteIf goes on to the next step if the bound of promoteIf is proved, else it
    pauses."""
    promote_if: PromoteIf | None = None
    stale_seconds: Annotated[Int32, Field(ge=5, le=86400)] = 60
    """Time in seconds for which a ready gateway may fail to respond. After that there is no verdict until all of them
    respond."""
    max_load_difference: Annotated[float, Field(gt=0, le=1000)] = 0.25
    """Maximum difference of the weight per ready pod between the two revisions, as a fraction: 0.25 is a quarter. If a
    pod of the new revision has more than that, latencies are not counted, and the revision cannot pass. If it has less
    than that, the verdict notes that its latencies were compared in its favour. The limit does not apply while a pod of
    stable has at most one request in progress."""
    min_samples: TemplateMinSamples = TemplateMinSamples()
    args: Annotated[
        tuple[TemplateArgument, ...],
        Field(max_length=16),
        CelRule(
            "self.all(a, self.exists_one(o, o.name == a.name))",
            "the names of spec.args must differ: give each argument a name of its own",
        ),
    ] = ()
    """Arguments that replace {{args.NAME}} in metrics with a provider."""
    metrics: Annotated[
        tuple[TemplateMetric, ...],
        Field(min_length=1, max_length=32),
        CelRule(
            "self.all(m, self.exists_one(o, o.name == m.name))",
            "the names of spec.metrics must differ: give each metric a name of its own",
        ),
    ]
    """Metrics of the analysis: comparisons with stable (event) and measurements (provider)."""
    vetoes: Annotated[
        tuple[TemplateVeto, ...],
        Field(max_length=8),
        CelRule(
            "self.all(v, self.exists_one(o, o.name == v.name))",
            "the names of spec.vetoes must differ: remove the duplicates",
        ),
    ] = ()
    """Symptoms that reject the new revision at once when it shows them and stable does not."""


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
                "Maximum fraction of healthy revisions that are rejected.",
            ),
            PrinterColumn(
                "False-Promote",
                "number",
                ".spec.falsePromoteRate",
                "Maximum fraction of revisions worse than maxRatio that pass.",
            ),
            PrinterColumn(
                "On-Inconclusive",
                "string",
                ".spec.onInconclusive",
                "Action without a verdict: Pause, Continue, Abort or PromoteIf.",
            ),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
            PrinterColumn("Metrics", "string", ".spec.metrics[*].name", "Names of the metrics.", wide=True),
        ),
    )
)
class AnalysisTemplate(ApiType):
    """Criteria by which a new revision is compared with the stable revision that serves beside it."""

    spec: AnalysisTemplateSpec
