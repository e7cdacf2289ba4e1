"""Which analyses go on: those whose AnalysisRun is the one that the status names, as the operator wrote it last.

The run is written before the status, with the next sequence. So a status never names a sequence that does not exist,
and what it acts on is in the status itself: whatever becomes of the run, it lets no revision pass.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from slipway_operator.api.v1alpha1.analysis_run import Outcome, RampRun, RunStatus, RunVerdict
from slipway_operator.api.v1alpha1.status import AnalysisReference, Loss, Rollout, StepRamp, StepVerdict
from slipway_operator.manifests.analysis_run import run_name
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.analysis.stored_run import FIELDS, RunWrite, StoredRun
from slipway_operator.model.deployment.former_run import former_run

Runs = dict[str, RunStatus]  # by field of the rollout
Stored = Mapping[str, StoredRun]  # by name


def why_lost(reference: AnalysisReference, stored: StoredRun | None, subject: str) -> Loss | None:
    """Why a run does not count; None where the analysis goes on from it.

    `subject`: UID of the ModelDeployment. A newer run counts only if this process wrote it: its write of the status
    failed, because the spec changed at the same moment.
    """
    if stored is None:
        return Loss.MISSING
    if stored.uid != reference.uid or stored.subject not in ("", subject):
        return Loss.FOREIGN
    if stored.run is None:
        return Loss.UNREADABLE
    if stored.generation != stored.run.sequence or stored.run.id != reference.id:
        return Loss.EDITED
    if stored.run.sequence < reference.sequence:
        return Loss.OLDER
    return None if stored.ours or stored.run.sequence == reference.sequence else Loss.NEWER


def continued(
    rollout: Rollout | None, stored: Stored, owner: Owner, *, writable: bool = True
) -> tuple[Rollout | None, Runs]:
    """The rollout without what it cannot act on any more, and the runs of the analyses that go on.

    `writable`: whether AnalysisRuns can be written. If not, what an earlier release counted stays in the status.
    """
    if rollout is None or not rollout.in_flight:
        return rollout, {}
    runs: Runs = {}
    changed: dict[str, Any] = {}
    for field in FIELDS:
        reference: AnalysisReference | None = getattr(rollout, field)
        if reference and reference.uid:
            read = stored.get(reference.run)
            if loss := why_lost(reference, read, owner.uid):
                changed[field] = _restarting(reference, loss)
            elif read and read.run:
                runs[field] = read.run
        elif reference and reference.counters is not None and writable:
            changed[field], moved = _moved(reference, owner)
            runs |= {field: moved} if moved else {}
    return replace(rollout, **changed) if changed else rollout, runs


def _moved(reference: AnalysisReference, owner: Owner) -> tuple[AnalysisReference, RunStatus | None]:
    """An analysis of a release without AnalysisRuns, with its run, which is to be created."""
    former = former_run(reference)
    if former is None:
        return _restarting(reference, Loss.UNREADABLE), None
    run = replace(former, sequence=1)
    ramp = _acted_on(run.ramp) if run.ramp else None
    named = AnalysisReference(reference.id, reference.template, run_name(owner.name, owner.uid, run), sequence=1)
    return replace(named, verdict=reference.verdict, braked=run.braked or None, ramp=ramp), run


def loses(before: Rollout | None, kept: Rollout | None) -> bool:
    """Whether an analysis starts again that did not before."""
    names = [[_run_of(rollout, field) for field in FIELDS] for rollout in (before, kept)]
    return any(former and not now for former, now in zip(*names, strict=True))


def recorded(
    former: AnalysisReference | None, run: RunStatus, name: str, *, bounded: bool = False
) -> AnalysisReference:
    """What a rollout acts on from now on.

    Args:
        former: what it acted on before.
        run: as it is written.
        name: of its object.
        bounded: whether the rollout may act on the bound on extra bad responses.
    """
    same = former if former and former.id == run.id else None
    return AnalysisReference(
        id=run.id,
        template=run.template,
        run=name,
        uid=same.uid if same and same.run == name else "",
        sequence=run.sequence,
        lost=same.lost if same else None,
        verdict=_decided(run.verdict, bounded=bounded) if run.verdict else None,
        braked=run.braked or None,
        ramp=_acted_on(run.ramp) if run.ramp else None,
    )


def writes(rollout: Rollout | None, runs: Runs, stored: Stored) -> Iterator[RunWrite]:
    """The runs that are to be written before a status with this rollout."""
    for field in FIELDS if rollout and rollout.in_flight else ():
        reference, run = getattr(rollout, field), runs.get(field)
        if reference is None or run is None or reference.run == "" or reference.sequence != run.sequence:
            continue
        former = stored.get(reference.run) if reference.uid else None
        if former is None or (former.run and former.run.sequence < run.sequence):
            yield RunWrite(reference.run, run, former)


def identified(rollout: Rollout | None, uids: Mapping[str, str]) -> Rollout | None:
    """The rollout with the UIDs of the runs that were created, by name."""
    if rollout is None:
        return None
    references = {field: reference for field in FIELDS if (reference := getattr(rollout, field))}
    created: dict[str, Any] = {
        field: replace(item, uid=uids[item.run])
        for field, item in references.items()
        if not item.uid and item.run in uids
    }
    return replace(rollout, **created) if created else rollout


def uids_of(rollout: Rollout | None) -> dict[str, str]:
    """The UIDs of the runs that a rollout names, by name."""
    references = [getattr(rollout, field) for field in FIELDS] if rollout else []
    return {reference.run: reference.uid for reference in references if reference and reference.uid}


def _run_of(rollout: Rollout | None, field: str) -> str:
    reference: AnalysisReference | None = getattr(rollout, field) if rollout else None
    return reference.uid or (reference.run if reference.sequence else "") if reference else ""


def _restarting(reference: AnalysisReference, loss: Loss) -> AnalysisReference:
    """An analysis whose run is lost: without a pass. A rejection stands, and weights stay until it is read again."""
    verdict = reference.verdict if reference.verdict and reference.verdict.outcome is Outcome.FAIL else None
    ramp = replace(reference.ramp, passed_at=None, bake_until=None) if reference.ramp else None
    bare = AnalysisReference(reference.id, reference.template, lost=loss, verdict=verdict, ramp=ramp)
    return replace(bare, braked=reference.braked)


def _acted_on(ramp: RampRun) -> StepRamp:
    return StepRamp(ramp.weight, ramp.max_harm, ramp.spent, ramp.at_most, ramp.passed_at, ramp.bake_until)


def _decided(verdict: RunVerdict, *, bounded: bool) -> StepVerdict:
    return StepVerdict(
        verdict.outcome,
        verdict.reason,
        verdict.message,
        verdict.since,
        verdict.seconds_left,
        verdict.extra.at_most if bounded and verdict.extra else None,
    )
