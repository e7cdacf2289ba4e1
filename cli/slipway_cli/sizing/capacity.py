"""What one pod carries while the objectives hold, from a load test or from the status of a ModelDeployment; pure.

The status has work in tokens per second, in which a prompt token counts by what it costs; a report has requests.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipway_cli.sizing import objectives as levels
from slipway_cli.sizing import report as reports
from slipway_cli.sizing import summary
from slipway_cli.sizing.answer import AT_LEAST, EXTRAPOLATED, MEASURED, PodCapacity
from slipway_cli.sizing.lengths import Lengths
from slipway_cli.sizing.objectives import Objectives
from slipway_cli.sizing.report import Report
from slipway_cli.sizing.steps import is_sure
from slipway_cli.sizing.summary import NOT_REACHED, THROUGHPUT, UNKNOWN
from slipway_operator.scaling_model import fit_text
from slipway_operator.scaling_model.capacity_model import CapacityModel
from slipway_operator.scaling_model.step_fit import PROMPT_COST

_ALIKE = 1.25  # times a length that was measured, within which another one is taken for it
_FULL = 0.9  # of the work of a full batch, from which the batch limits


def of_report(
    report: Report, objectives: Objectives | None, prompts: Lengths | None, outputs: Lengths | None
) -> PodCapacity:
    """From a load test; other objectives than its own are computed from its times.

    Raises:
        ValueError: no step holds the objectives, or none has times of one.
    """
    wanted = objectives or reports.objectives_of(report)
    steps = reports.steps_of(report)
    for name in wanted:
        if not any(step.times_ms(name) for step in steps):
            raise ValueError(
                f"no data: the report has no times of {name}; run slipway bench with streams of two tokens"
            )
    found = summary.summarize(steps, wanted, report.max_error_share)
    if found.best is None:
        raise ValueError(f"no concurrency of the report holds {levels.text_of(wanted)}: {found.why}")
    count = found.best.ended_well
    measured = found.best.prompt_tokens / count, found.best.output_tokens / count
    lengths = _lengths(measured, prompts, outputs) if report.kind == "chat" else (0.0, 0.0)
    notes = list(report.notes)
    if report.ended != "Complete":
        notes.append(f"the load test ended early: {report.ended}")
    if report.tokens == "estimated":
        notes.append("the server counted no tokens: words of prompts and events of streams are taken for them")
    if not is_sure(found.best, wanted):
        notes.append(f"{count} requests in the best step are too few to be 95 % sure that the objectives hold")
    scale, basis = 1.0, AT_LEAST if found.limit in (NOT_REACHED, UNKNOWN) else MEASURED
    if report.kind == "chat" and not _are_alike(measured, lengths):
        scale = _work(measured, PROMPT_COST) / _work(lengths, PROMPT_COST)
        basis = EXTRAPOLATED
        notes.append(
            f"extrapolated by tokens from prompts of {measured[0]:.0f} and outputs of {measured[1]:.0f} tokens; a "
            f"prompt token counts {PROMPT_COST:g} of an output token, and a longer prompt has a later first token"
        )
    part = scale / report.pods
    high = None if found.high is None else found.high * part
    return PodCapacity(
        "bench", basis, found.best.rate * part, found.low * part, high, *lengths, found.limit, found.why, tuple(notes)
    )


def of_status(
    obj: Mapping[str, Any], objectives: Objectives | None, prompts: Lengths | None, outputs: Lengths | None
) -> PodCapacity:
    """From the capacity model in the status of a ModelDeployment, of the revision that serves.

    Raises:
        ValueError: it has none, or one of other objectives.
    """
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    name, revision = obj["metadata"]["name"], status.get("stableRevision")
    looser = _compared(levels.of_spec(spec), objectives)
    entry = _entry(status, revision, name)
    model = fit_text.model_of(str(entry.get("fit") or ""))
    rate, low, high = _positive(entry, "perSecond"), _positive(entry, "atLeast"), _positive(entry, "atMost")
    if rate is None:
        raise ValueError(f"no data: what a pod of {name} carries is unknown yet; run slipway bench {name}")
    counts_tokens = model.steps.observations > 0 or (spec.get("model") or {}).get("task") != "predict"
    basis, notes = str(entry.get("basis") or AT_LEAST), list(looser)
    if not counts_tokens:
        limit, why = _limit_of(basis, rate, model, status)
        return PodCapacity(
            "status", _or_at_least(basis, looser), rate, low or 0.0, high, 0, 0, limit, why, tuple(notes)
        )
    if prompts is None or outputs is None:
        raise ValueError("the status has tokens per second: write --prompt-tokens and --output-tokens of a request")
    lengths = prompts.mean, outputs.mean
    work = _work(lengths, model.prompt_cost)
    mix = lengths[0] / lengths[1]
    if model.steps.solved() is None:
        notes.append(f"what prompts cost is not fitted yet: a prompt token counts {PROMPT_COST:g} of an output token")
    if model.prompts_for_each > 0 and not 1 / 2 <= mix / model.prompts_for_each <= 2:
        notes.append(
            f"extrapolated by tokens: the model saw {model.prompts_for_each:.3g} prompt tokens for each output token, "
            f"and these requests have {mix:.3g}"
        )
        basis = EXTRAPOLATED if basis == MEASURED else basis
    limit, why = _limit_of(basis, rate, model, status)
    basis = _or_at_least(basis, looser)
    return PodCapacity(
        "status",
        basis,
        rate / work,
        (low or 0.0) / work,
        None if high is None else high / work,
        *lengths,
        limit,
        why,
        tuple(notes),
    )


def _lengths(measured: tuple[float, float], prompts: Lengths | None, outputs: Lengths | None) -> tuple[float, float]:
    return prompts.mean if prompts else measured[0], outputs.mean if outputs else measured[1]


def _are_alike(measured: tuple[float, float], lengths: tuple[float, float]) -> bool:
    return all(
        min(a, b) > 0 and max(a, b) <= _ALIKE * min(a, b) for a, b in zip(measured, lengths, strict=True) if a != b
    )


def _work(lengths: tuple[float, float], prompt_cost: float) -> float:
    """Of a request, in output tokens; above 0."""
    return max(1e-9, lengths[1] + prompt_cost * lengths[0])


def _compared(own: Objectives, wanted: Objectives | None) -> Sequence[str]:
    """A note where the objectives are looser than those of the status. Raises ValueError where they are stricter."""
    if not own:
        raise ValueError("no data: spec.slo has no latency; run slipway bench with --slo, then slipway size --from")
    if wanted is None or wanted == own:
        return ()
    for name, limit in wanted.items():
        if name not in own or limit < own[name]:
            raise ValueError(
                f"no data for {name}={limit}ms: the status was measured for {levels.text_of(own)}; run slipway bench "
                "with --slo, then slipway size --from"
            )
    return (f"measured for {levels.text_of(own)}, which is stricter: a pod carries at least this",)


def _entry(status: Mapping[str, Any], revision: object, name: str) -> Mapping[str, Any]:
    scaling = status.get("autoscaling") or {}
    entry: Mapping[str, Any] | None = next(
        (item for item in scaling.get("revisions") or () if item.get("revision") == revision), None
    )
    if not revision or entry is None:
        raise ValueError(
            f"no data: the status of {name} has no capacity of the revision that serves, because "
            f"spec.autoscaling.objective is not set or too new; run slipway bench {name} --save FILE"
        )
    return entry


def _positive(entry: Mapping[str, Any], key: str) -> float | None:
    number = entry.get(key)
    if not isinstance(number, int | float) or isinstance(number, bool):
        return None
    return float(number) if math.isfinite(number) and number > 0 else None


def _or_at_least(basis: str, looser: Sequence[str]) -> str:
    return AT_LEAST if looser and basis == MEASURED else basis


def _limit_of(basis: str, rate: float, model: CapacityModel, status: Mapping[str, Any]) -> tuple[str, str]:
    """What limits, with a sentence."""
    if basis == AT_LEAST:
        return NOT_REACHED, "no load so far was too high"
    full = model.full_batch
    if full is not None and rate >= _FULL * full * 0.999:
        return THROUGHPUT, f"a full batch of {model.slots:.0f} requests does {full:.4g} tokens of work per second"
    counted = (status.get("slo") or {}).get("objectives") or ()
    shares = {
        str(each.get("objective")): each.get("missed", 0) / each["requests"]
        for each in counted
        if each.get("objective") in levels.SHARES and each.get("requests")
    }
    late = max(shares, key=lambda each: shares[each] / (1 - levels.SHARES[each]), default=None)
    if late is None or not shares[late]:
        return UNKNOWN, "the status does not say which objective is missed first"
    return late, f"{shares[late]:.1%} of the requests in the window of spec.slo missed {late}, more than of any other"
