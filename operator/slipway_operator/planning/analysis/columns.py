"""Columns of an analysis's counters: four for each metric, and further ones of mirrored prompts and latencies."""

from dataclasses import dataclass
from enum import StrEnum

from slipway_contracts.counters import BINS
from slipway_operator.model.analysis.spec import (
    TOKENS_FLIP,
    AnalysisSpec,
    Kind,
    MetricSpec,
    of_bin,
    of_changed,
    of_copies,
    of_gross,
    of_marks,
    of_probes,
    of_slowdown,
    of_tail,
    of_texts,
    of_tokens,
    of_unscored,
    of_unsent,
    of_withheld,
    without_floor,
)


class ColumnPart(StrEnum):
    """What four counters of a metric count."""

    WHOLE = "Whole"
    NO_FLOOR = "NoFloor"  # mirrored prompts that no second stable pod answered
    SLOWDOWN = "Slowdown"  # latencies above stable's median, and above canary's limit
    TAIL = "Tail"  # latencies of pairs above stable's quantile
    WITHHELD = "Withheld"  # pairs that were sent or withheld, those withheld because something was busy, failed probes
    PROBES = "Probes"  # pairs that are probes, and those of them with a bad response
    TEXTS = "Texts"  # pairs whose texts were compared, and those that differ
    TOKENS = "Tokens"  # tokens that both sides scored, and those that are not a side's first choice
    CHANGED = "Changed"  # millionths of pairs, and the sum of the parts of stable's choices that canary does not make
    MARKS = "Marks"  # thousandths of pairs with scores, and the sums of the scores of both sides
    UNSCORED = "Unscored"  # pairs for a scorer, those without a response, those with an invalid one
    UNSENT = "Unsent"  # pairs for a scorer, those that were dropped, those that were blocked
    BIN = "Bin"  # predictions, and those in one bin
    COPIES = "Copies"  # copies of requests with predictions or tokens to compare, failed ones of them, unread ones
    GROSS = "Gross"  # latencies far above stable's, from the first request on


@dataclass(frozen=True, slots=True)
class CounterColumn:
    """Four counters of a metric: requests of canary and of stable, bad ones of each; or what `part` describes."""

    name: str
    metric: MetricSpec
    part: ColumnPart = ColumnPart.WHOLE
    place: int = 0  # of a bin

    @property
    def drift(self) -> bool:
        return self.metric.kind is Kind.PAIRED_DRIFT

    @property
    def copies(self) -> bool:
        """Whether the column counts copies of requests, which no weight splits."""
        return self.drift or self.metric.is_paired

    @property
    def limited(self) -> bool:
        """Whether the column needs limits from stable's latencies; gateways apply those of pairs."""
        return self.metric.latency and self.part not in (ColumnPart.TAIL, ColumnPart.WITHHELD, ColumnPart.PROBES)

    @property
    def waits(self) -> bool:
        """Whether the column counts nothing while latencies are not comparable; those of pairs always are."""
        return self.metric.latency and not self.metric.is_paired and self.part is not ColumnPart.GROSS


def columns(spec: AnalysisSpec) -> tuple[CounterColumn, ...]:
    """Every metric in the order of the template, then further columns of mirrored prompts, pairs and latencies.

    Not those of costs, which no gateway counts.
    """
    metrics = tuple(CounterColumn(metric.name, metric) for metric in spec.metrics if not metric.of_cost)
    mirrored = [it for it in metrics if it.drift]
    unfloored = (
        CounterColumn(without_floor(it.name), it.metric, ColumnPart.NO_FLOOR)
        for it in mirrored
        if not it.metric.of_agreement
    )
    copies = (
        CounterColumn(of_copies(it.name), it.metric, ColumnPart.COPIES)
        for it in metrics
        if it.metric.of_agreement or it.metric.of_choices
    )
    changed = (
        CounterColumn(of_changed(it.name), it.metric, ColumnPart.CHANGED) for it in metrics if it.metric.of_choices
    )
    slowdowns = (
        CounterColumn(of_slowdown(it.name), it.metric, ColumnPart.SLOWDOWN)
        for it in metrics
        if it.metric.max_slowdown is not None and not it.metric.is_paired
    )
    paired = [it for it in metrics if it.metric.is_paired]
    tails = (CounterColumn(of_tail(it.name), it.metric, ColumnPart.TAIL) for it in paired if it.metric.latency)
    withheld = (CounterColumn(of_withheld(it.name), it.metric, ColumnPart.WITHHELD) for it in paired[:1])
    probes = (CounterColumn(of_probes(it.name), it.metric, ColumnPart.PROBES) for it in paired[:1])
    scored = [it for it in paired if it.metric.event == TOKENS_FLIP][:1]
    quality = (
        CounterColumn(name(it.name), it.metric, part)
        for it in scored
        for name, part in ((of_texts, ColumnPart.TEXTS), (of_tokens, ColumnPart.TOKENS))
    )
    rated = [it for it in paired if it.metric.scorer][:1]
    scores = (
        CounterColumn(name(it.name), it.metric, part)
        for it in rated
        for name, part in (
            (of_marks, ColumnPart.MARKS),
            (of_unscored, ColumnPart.UNSCORED),
            (of_unsent, ColumnPart.UNSENT),
        )
    )
    gross = (
        CounterColumn(of_gross(it.name), it.metric, ColumnPart.GROSS)
        for it in metrics
        if it.metric.latency and not it.metric.dry_run and not it.metric.is_paired
    )
    binned = (
        CounterColumn(of_bin(it.name, place), it.metric, ColumnPart.BIN, place)
        for it in metrics
        if it.metric.of_predictions
        for place in range(BINS)
    )
    of_pairs = (*tails, *withheld, *probes, *quality, *scores)
    return (*metrics, *unfloored, *slowdowns, *of_pairs, *gross, *binned, *copies, *changed)
