"""Manifests of AnalysisRuns, of MOST_BYTES at most."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from slipway_contracts.api.times import format_time
from slipway_contracts.api.writing import to_json
from slipway_operator.api.fitting import fitted
from slipway_operator.api.v1alpha1.analysis_run import MOST_BYTES, RunStatus
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels

KIND = "AnalysisRun"
METADATA_BYTES = 8 << 10  # for what the API server adds to the metadata, managedFields above all
LAST_WORDS = 3  # changes of the verdict, and measurements of a metric, that stay where there is no room for more

Json = dict[str, Any]


class RunTooLarge(ValueError):
    """The counts of an analysis need more room than an object has."""


def run_name(name: str, uid: str, run: RunStatus) -> str:
    """The name of the object of a run that begins; `name`, `uid`: of its subject.

    Each beginning has a name of its own: no object of another client, or one that is left over, stands in its way
    for longer than a second.
    """
    begun = "/".join((uid, run.id, run.template, run.template_hash, format_time(run.started_at)))
    return f"{name}-{run.id.replace('/', '-')[:40]}-{hashlib.sha256(begun.encode()).hexdigest()[:8]}"


def analysis_run(owner: Owner, name: str, run: RunStatus) -> Json:
    """The manifest of a run.

    It carries no labels or annotations of its owner, by which GitOps tools would take it for an object of theirs.

    Raises:
        RunTooLarge: when it has more than MOST_BYTES even without its history.
    """
    outcome = str(run.verdict.outcome) if run.verdict else "None"
    kind, subject = labels.object_of(owner.name)
    body = {
        "apiVersion": labels.API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {
                labels.MODEL_DEPLOYMENT: owner.name,
                labels.MANAGED_BY: "slipway",
                labels.ANALYSIS_OUTCOME: outcome,
            },
            "ownerReferences": [owner.reference() | {"blockOwnerDeletion": False}],
        },
        "spec": {
            "subjectRef": {
                "apiVersion": labels.API_VERSION,
                "kind": kind,
                "name": subject,
                "uid": owner.uid,
            }
        },
    }
    room = MOST_BYTES - METADATA_BYTES - len(msgspec.json.encode(body))
    for smaller in _smaller(run):
        status = rendered(smaller)
        if len(msgspec.json.encode(status)) <= room:
            return body | {"status": status}
    raise RunTooLarge(f"its counts need more than {MOST_BYTES >> 10} KiB: compare fewer metrics, or use fewer weights")


def rendered(run: RunStatus) -> Json:
    """The status of a run as JSON, within the bounds of its schema; counts of 0 are left out."""
    status: Json = fitted(RunStatus, to_json(run))
    for item in status.get("counts", ()):
        item["epochs"] = list(map(_counted, item.get("epochs", ())))
    if "assigned" in status:
        status["assigned"] = list(map(_counted, status["assigned"]))
    for item in (*status.get("seen", ()), *status.get("trace", ())):
        counts = {name: counted for name, count in item.get("counts", {}).items() if (counted := _counted(count))}
        item |= {"counts": counts}
    return status


def _counted(counts: Json) -> Json:
    return {name: count for name, count in counts.items() if count}


def _smaller(run: RunStatus) -> Iterator[RunStatus]:
    """The run, then with less and less of what no verdict is computed from."""
    yield run
    for shrink in _SHRINKING:
        run = shrink(run)
        yield run


def _half(run: RunStatus) -> RunStatus:
    """With every second reading of its history, the last one included."""
    times = sorted({moment.seconds for moment in run.trace})[::-1][::2]
    return replace(
        run,
        trace=tuple(moment for moment in run.trace if moment.seconds in times),
        series=tuple(replace(item, points=item.points[::-1][::2][::-1]) for item in run.series),
        harm=run.harm[::-1][::2][::-1],
    )


def _without_history(run: RunStatus) -> RunStatus:
    return replace(run, trace=(), series=(), harm=())


def _with_last_words(run: RunStatus) -> RunStatus:
    """With the last changes of the verdict and the last measurements alone, and with limits from all latencies."""
    measured = tuple(replace(item, measurements=item.measurements[-LAST_WORDS:]) for item in run.measured)
    return replace(run, decisions=run.decisions[-LAST_WORDS:], measured=measured, former_times=())


_SHRINKING: tuple[Callable[[RunStatus], RunStatus], ...] = (_half, _half, _without_history, _with_last_words)
