"""`spec.accuracy` in its decided form: what is watched after the rollout, and what an alarm does."""

import re
from dataclasses import dataclass, field
from datetime import timedelta

from slipway_contracts.accuracy import LONGEST_AGE_S
from slipway_operator.api.v1alpha1.accuracy import AccuracyPredictions, AccuracySpec, LabelAccuracy
from slipway_operator.api.v1alpha1.accuracy_status import FEEDBACK, PREDICTIONS

LEAST_REFERENCE = 1000  # predictions
_TIME = re.compile(r"([1-9][0-9]{0,3})(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class SignalTerms:
    """What is watched of one signal.

    `share_limit`: share of wrong labels above which there is an alarm; None: there is a reference. `max_rise`: by how
    much a share may exceed that of the reference; None: there is none. `least`, `lasts`: observations, and time, that a
    reference has. `rate`: false alarms a year.
    """

    signal: str
    rate: float
    share_limit: float | None = None
    max_rise: float | None = None
    least: int = 0
    lasts: timedelta = field(default_factory=timedelta)

    @property
    def limits(self) -> str:
        """The fields that the evidence is about, as text."""
        return f"{self.share_limit} {self.max_rise} {self.rate:.9g}"

    @property
    def reference_rule(self) -> str:
        """The fields by which a reference is taken, as text; empty without one."""
        return "" if self.max_rise is None else f"{self.least} {self.lasts.total_seconds():.0f}"


@dataclass(frozen=True, slots=True)
class AccuracyTerms:
    """`signals`: what is watched. `max_age_s`: of responses whose labels count; None: no labels are watched."""

    signals: tuple[SignalTerms, ...]
    rate: float
    max_age_s: int | None
    rolls_back: bool

    def of(self, signal: str) -> SignalTerms | None:
        """What is watched of a signal; None: nothing."""
        return next((one for one in self.signals if one.signal == signal), None)


def accuracy_of(written: AccuracySpec) -> AccuracyTerms:
    """Return `spec.accuracy` in its decided form.

    Raises:
        ValueError: when it is invalid.
    """
    given = [one for one in (written.feedback, written.predictions) if one is not None]
    if not given:
        raise ValueError("spec.accuracy watches nothing: write feedback or predictions")
    rate = written.false_alarms_per_year
    of_each = rate / len(given)
    signals = []
    if written.feedback is not None:
        signals.append(_labels(written.feedback, of_each))
    if written.predictions is not None:
        signals.append(_predictions(written.predictions, of_each))
    age = _time_of("spec.accuracy.feedback.maxAge", written.feedback.max_age) if written.feedback else None
    if age is not None and age.total_seconds() > LONGEST_AGE_S:
        raise ValueError(f"spec.accuracy.feedback.maxAge is at most {LONGEST_AGE_S // 86400}d")
    rolls_back = written.on_alarm == "Rollback"
    return AccuracyTerms(tuple(signals), rate, int(age.total_seconds()) if age else None, rolls_back)


def _labels(written: LabelAccuracy, rate: float) -> SignalTerms:
    if (written.min_accuracy is None) == (written.max_drop is None):
        raise ValueError("spec.accuracy.feedback has one limit: write minAccuracy, or maxDrop")
    limit = None if written.min_accuracy is None else round(1 - written.min_accuracy, 9)
    least = 0 if written.max_drop is None else written.baseline_labels
    return SignalTerms(FEEDBACK, rate, limit, written.max_drop, least)


def _predictions(written: AccuracyPredictions, rate: float) -> SignalTerms:
    lasts = _time_of("spec.accuracy.predictions.reference", written.reference)
    return SignalTerms(PREDICTIONS, rate, None, written.max_shift, LEAST_REFERENCE, lasts)


def _time_of(path: str, text: str) -> timedelta:
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f"{path} {text!r} is no time like 30m, 12h or 7d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
