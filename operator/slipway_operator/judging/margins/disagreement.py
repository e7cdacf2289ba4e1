"""Sentences about predictions of canary, or choices of tokens, that differ from stable's, for the same copies."""

from slipway_operator.model.analysis.spec import MetricSpec
from slipway_operator.model.analysis.verdict import Disagreement

READ = "gateways compare requests of setMirrorRoute whose responses they can read, of up to 32 KiB"
READ_OF_PAIRS = "gateways compare responses of classic models that they can read, of up to 32 KiB"

SCORED = (
    "servers need prompt_logprobs; gateways compare --mirror-compare-percentage of the pairs, of prompts with one "
    "response of up to 4 KiB together"
)


def sentence(metric: MetricSpec, found: Disagreement) -> str:
    """The counts in words, and the limit where the metric has one."""
    copies, other = ("pairs", "its twin") if metric.is_paired else ("mirrored requests", "stable")
    part = f" ({found.disagreed / found.compared:.2%})" if found.compared else ""
    if metric.of_choices:
        return _of_tokens(metric, found)
    text = f"of {found.compared:,} {copies} canary predicts something else than {other} for {found.disagreed:,}"
    limit = "" if metric.max_disagreement is None else f" (maxDisagreement {metric.max_disagreement:.4g})"
    bound = f", {found.at_most:.2%} at most" if found.at_most < 1 else ""
    rest = [
        f"{count:,} {what}"
        for count, what in ((found.failed, "failed on canary"), (found.unread, "could not be read"))
        if count
    ]
    return "; ".join([f"{text}{part}{bound}{limit}", *rest])


def _of_tokens(metric: MetricSpec, found: Disagreement) -> str:
    share = found.disagreed / found.compared if found.compared else 0.0
    text = f"{share:.2%} of the tokens that stable chooses are not canary's first choice"
    bound = f", {found.at_most:.2%} at most" if share < (metric.max_disagreement or 0) and found.at_most < 1 else ""
    failed = f"; canary's server scored {found.failed:,} others not" if found.failed else ""
    return f"{text}, by {found.compared:,} responses{bound} (maxDisagreement {metric.max_disagreement:.4g}){failed}"
