"""Judges an analysis again from its saved AnalysisRun: with the same judge, at each reading that is known.

The command line calls it (`slipway analyze`): the judge exists once, and the command line has no other entry to it.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.writing import to_json
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.analysis_run import AnalysisRun, RunVerdict
from slipway_operator.api.v1alpha1.analysis_run import RunStatus as RunStatus
from slipway_operator.model.analysis.spec import AnalysisSpec
from slipway_operator.model.analysis.stored_run import FIELDS
from slipway_operator.model.analysis.template import Template, found
from slipway_operator.model.analysis.verdict import Verdict
from slipway_operator.model.deployment.strategy import Strategy, parse_strategy
from slipway_operator.planning.analysis import findings, ramping, trace
from slipway_operator.planning.analysis.runs import concluded, its_part, ruled


@dataclass(frozen=True, slots=True)
class Look:
    """The judge's verdict on everything that was counted until `seconds` after the run's start."""

    seconds: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Retrial:
    """A run and the verdict on it over time; `verdict` is the last one in the form of the run, with thresholds.

    `looks` have the judge's verdicts alone, without metrics with a provider; the last look is at the run's last
    reading. Of earlier readings only the counts are known: they are judged as if pods had equal load, no veto
    applied and no cost was compared. `notes`: why this verdict may differ from the one in the run.
    """

    run: RunStatus
    looks: tuple[Look, ...]
    verdict: Json
    notes: tuple[str, ...] = ()
    measured: tuple[Json, ...] = ()  # metrics with a provider, as the run has them
    ramp: str = ""  # what a ramp may have cost; empty for a run without one


def named(obj: Json) -> dict[str, str]:
    """Names of the AnalysisRuns in a ModelDeployment's status, by field: of a step, in the background."""
    rollout = (obj.get("status") or {}).get("rollout")
    references = {field: rollout.get(field) for field in FIELDS} if isinstance(rollout, dict) else {}
    return {field: str(it["run"]) for field, it in references.items() if isinstance(it, dict) and it.get("run")}


def parse(obj: Json) -> RunStatus:
    """The run of an AnalysisRun object.

    Raises:
        ValueError: when it is not one of this release; the message is for people.
    """
    try:
        return read(AnalysisRun, encoded({name: obj.get(name) for name in ("spec", "status")})).status
    except ValueError as error:
        name = (obj.get("metadata") or {}).get("name", "")
        raise ValueError(f"AnalysisRun {name} cannot be read as one of this release: {error}") from error


def again(obj: Json, run: RunStatus, template: Json | None) -> Retrial:
    """Judge a run of this ModelDeployment again.

    Args:
        obj: as the API server returned it, for its strategy: analyses share the error rate.
        run: as `parse` read it.
        template: `spec` of the AnalysisTemplate that the run names; None where there is no object of that name.

    Raises:
        ValueError: when there is no usable template, or the object is invalid; the message is for people.
    """
    chosen = found(run.template, template)
    if chosen.spec is None:
        raise ValueError(chosen.problem)
    part = chosen.spec.part(paired=run.shadow is not None)
    part = part.without_latencies if run.shadow and run.shadow.on_failure else part
    warmed = run.ramp is not None and run.ramp.shadow_at_most is not None
    spec = its_part(_strategy(obj), part.warmed if warmed else part)
    looks = (*_earlier(run, spec), Look(_seconds(run), ruled(run, spec)))
    shown = findings.shown(concluded(run, spec), run.verdict, run.read_at)
    notes, measured = _notes(run, chosen, shown), to_json(run.measured)
    ramp = f"weight {run.ramp.weight}: {ramping.sentence(run.ramp)}" if run.ramp else ""
    return Retrial(run, looks, to_json(shown), tuple(notes), tuple(measured), ramp)


def _strategy(obj: Json) -> Strategy:
    try:
        return parse_strategy((obj.get("spec") or {}).get("strategy") or {})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"spec.strategy cannot be read: {error}") from error


def _earlier(run: RunStatus, spec: AnalysisSpec) -> list[Look]:
    """Verdicts at the readings before the last one."""
    plain = replace(
        RunStatus(run.id, run.template, run.template_hash, run.started_at, run.read_at),
        timed=run.timed,
        clocks=run.clocks,
        weights_differ=run.weights_differ,
        shadow=replace(run.shadow, open=0, no_twin="") if run.shadow else None,
    )
    looks = []
    for seconds in trace.readings(run):
        at = run.started_at + timedelta(seconds=seconds)
        if at < run.read_at:
            first = run.first_request_at if run.first_request_at and run.first_request_at <= at else None
            past = replace(plain, read_at=at, first_request_at=first, counts=trace.counts_at(run, seconds))
            looks.append(Look(seconds, ruled(past, spec)))
    return looks


def _seconds(run: RunStatus) -> int:
    return int((run.read_at - run.started_at).total_seconds())


def _notes(run: RunStatus, chosen: Template, shown: RunVerdict) -> list[str]:
    notes = []
    if run.template_hash != chosen.hash:
        notes.append(f"AnalysisTemplate {run.template} has changed since: this is what the present one computes")
    if not run.trace and any(item.epochs for item in run.counts):
        notes.append("the run holds no history of the counts: only the end is shown")
    if run.verdict and shown != run.verdict and not notes:
        notes.append(f"the operator wrote down something else: {run.verdict.outcome}, {run.verdict.reason}")
    return notes
