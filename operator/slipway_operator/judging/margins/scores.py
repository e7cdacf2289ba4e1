"""What a scorer finds in pairs of a twin shadow, and the sentence about it.

Whether canary's responses are worse is decided like any other event of pairs. A pair without a result of the scorer is
no evidence against canary; where that could be canary's fault, it is no evidence in its favour either.
"""

from slipway_operator.api.v1alpha1.analysis_run import Counts, Epoch
from slipway_operator.api.v1alpha1.twin_shadow import PairScores
from slipway_operator.model.analysis.spec import of_marks, of_unscored, of_unsent
from slipway_operator.model.analysis.verdict import Reading

_DIGITS = 3


def found(reading: Reading) -> PairScores | None:
    """The scores so far; None where the template has no scorer."""
    suffix = of_unscored("")
    metric = next((name.removesuffix(suffix) for name in reading.by_metric if name.endswith(suffix)), None)
    if metric is None:
        return None
    pairs, lower, twin_lower = _sums(reading, metric, "stable_units", "canary_bad", "stable_bad")
    marks, canary, twin = _sums(reading, of_marks(metric), "canary_units", "canary_bad", "stable_bad")
    unanswered, invalid = _sums(reading, of_unscored(metric), "canary_bad", "stable_bad")
    dropped, blocked = _sums(reading, of_unsent(metric), "canary_bad", "stable_bad")
    means = (_mean(canary, marks), _mean(twin, marks))
    return PairScores(pairs, lower, twin_lower, means[0], means[1], unanswered, invalid, dropped, blocked)


def sentence(scores: PairScores) -> str:
    """The scores in words; empty where no pair was chosen for the scorer yet."""
    parts = []
    if scores.pairs:
        means = f" (means {scores.canary_mean:g} and {scores.twin_mean:g})" if scores.canary_mean is not None else ""
        lower = f"canary's response lower in {scores.lower_on_canary:,} and its twin's in {scores.lower_on_twin:,}"
        parts.append(f"of {scores.pairs:,} pairs the scorer rates {lower}{means}")
    if scores.unanswered or scores.invalid:
        parts.append(f"the scorer left {scores.unanswered:,} pairs unanswered and {scores.invalid:,} without a result")
    if scores.blocked:
        parts.append(f"{scores.blocked:,} pairs were not sent to it: list its host in --scorer-hosts of the gateways")
    if scores.dropped:
        parts.append(f"{scores.dropped:,} were not sent because gateways were busy")
    return "; ".join(parts)


def _mean(total: int, marks: int) -> float | None:
    return round(total / marks, _DIGITS) if marks else None


def _sums(reading: Reading, name: str, *fields: str) -> list[int]:
    epochs: tuple[Epoch, ...] = reading.by_metric.get(name, Counts(name)).epochs
    return [sum(getattr(epoch, field) for epoch in epochs) for field in fields]
