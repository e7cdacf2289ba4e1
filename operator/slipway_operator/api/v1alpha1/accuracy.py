"""spec.accuracy: what is watched after the rollout, and what an alarm does."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import CelRule, implied_defaults, rule
from slipway_contracts.api.types import ApiType, Int32

_TIME = "self.matches('^[1-9][0-9]{0,3}(m|h|d)$')"


@rule(
    "has(self.minAccuracy) != has(self.maxDrop)",
    "spec.accuracy.feedback has one limit: write minAccuracy, or maxDrop",
)
@implied_defaults()
class LabelAccuracy(ApiType):
    """Labels that clients send to /v1/feedback. Responses have a token for them."""

    min_accuracy: Annotated[float, Field(ge=0.01, le=0.999)] | None = None
    """Share of right answers below which an alarm is raised, for example 0.9."""
    max_drop: Annotated[float, Field(ge=0.001, le=0.5)] | None = None
    """Drop of the share of right answers, below that of the revision's first labels, above which an alarm is raised,
    for example 0.05."""
    baseline_labels: Annotated[Int32, Field(ge=100, le=1000000)] = 2000
    """Number of first labels of a revision that maxDrop compares with. The more, the smaller are the drops that can be
    found."""
    max_age: Annotated[
        str,
        Field(max_length=5),
        CelRule(_TIME, "accuracy.feedback.maxAge is a number of minutes, hours or days: write for example 30d"),
    ] = "30d"
    """Age of a response up to which a label counts, at most 180d."""


@implied_defaults()
class AccuracyPredictions(ApiType):
    """What classic models predict, compared with the first predictions of the same revision. It needs no labels."""

    max_shift: Annotated[float, Field(ge=0.01, le=0.9)] = 0.1
    """Change of the share of one label, or of one tenth of the numbers, above which an alarm is raised."""
    reference: Annotated[
        str,
        Field(max_length=5),
        CelRule(_TIME, "accuracy.predictions.reference is a number of minutes, hours or days: write for example 7d"),
    ] = "7d"
    """Time from the promotion in which the predictions are the reference, of at least 1000. It should have what repeats
    itself, such as a week."""


@rule(
    "has(self.feedback) || has(self.predictions)",
    "spec.accuracy watches nothing: write feedback or predictions, or remove spec.accuracy",
)
@implied_defaults()
class AccuracySpec(ApiType):
    """What is watched after the rollout, for as long as a revision serves: whether its answers are right, and whether
    its predictions change. A change restarts nothing."""

    feedback: LabelAccuracy | None = None
    predictions: AccuracyPredictions | None = None
    false_alarms_per_year: Annotated[float, Field(ge=0.001, le=12)] = 0.1
    """Expected number of false alarms in a year that is never exceeded, of feedback and predictions together."""
    on_alarm: Literal["Alert", "Rollback"] = "Alert"
    """Alert: a condition, an Event, metrics. Rollback: also a rollback to the former revision, whether it has pods or
    not, once for each revision."""
