"""Sentences about predictions of canary that differ from those of stable, for copies of the same requests."""

from slipway_operator.model.analysis.spec import MetricSpec
from slipway_operator.model.analysis.verdict import Disagreement

READ = "gateways compare requests of setMirrorRoute whose responses they can read, of up to 32 KiB"
READ_OF_PAIRS = "gateways compare responses of classic models that they can read, of up to 32 KiB"


def sentence(metric: MetricSpec, found: Disagreement) -> str:
    """The counts in words, and the limit where the metric has one."""
    copies, other = ("pairs", "its twin") if metric.is_paired else ("mirrored requests", "stable")
    part = f" ({found.disagreed / found.compared:.2%})" if found.compared else ""
    text = f"of {found.compared:,} {copies} canary predicts something else than {other} for {found.disagreed:,}"
    limit = "" if metric.max_disagreement is None else f" (maxDisagreement {metric.max_disagreement:.4g})"
    bound = f", {found.at_most:.2%} at most" if found.at_most < 1 else ""
    rest = [
        f"{count:,} {what}"
        for count, what in ((found.failed, "failed on canary"), (found.unread, "could not be read"))
        if count
    ]
    return "; ".join([f"{text}{part}{bound}{limit}", *rest])
