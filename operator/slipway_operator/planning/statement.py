"""The statement about a verdict, as it is signed: an in-toto Statement v1 over what the model's pin names.

It has at most MOST_PAYLOAD_BYTES. Where there is no room, rows of metrics are left out, the least telling first, and
counted; then what only explains.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipway_contracts.api.times import format_time
from slipway_contracts.verdict_statements import MOST_PAYLOAD_BYTES, PREDICATE_TYPE, STATEMENT_TYPE
from slipway_operator.api.objects import Object
from slipway_operator.api.v1alpha1.analysis_run import MetricRow, MetricSeries, Outcome, RunStatus
from slipway_operator.api.v1alpha1.status import Decision, Rollout, Status
from slipway_operator.model import labels
from slipway_operator.model.analysis.stored_run import FIELDS, StoredRun
from slipway_operator.model.analysis.verdict import Finding
from slipway_operator.model.cluster import weights
from slipway_operator.model.cluster.observed import Observed, Snapshot
from slipway_operator.planning.analysis.continuing import why_lost
from slipway_operator.planning.audit import INTENTS, writers
from slipway_operator.planning.facts.verdicts import RevisionVerdict

Json = dict[str, Any]

MOST_DECISIONS = 8
LONGEST_REASON, SHORT_REASON, LONGEST_URI = 500, 120, 512
BEGINNINGS = ("new-revision", "retry", "changed-after-abort", "first-serves-and-changes")  # rows that begin an attempt
COUNTING = ("analysis-counted", "hook-due", "hook-answered")  # rows that decide nothing
# Findings from the most telling one: rows of the others are left out first.
_TELLING = (Finding.WORSE, Finding.NOT_WORSE, Finding.UNDECIDED, Finding.WITHIN, Finding.COVERED)


class NothingPinned(ValueError):
    """No digest says which model the verdict is about."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict with what it was decided by. `former`: the status that the decision was made from."""

    verdict: RevisionVerdict
    obj: Object
    former: Status
    status: Status
    observed: Observed


def statement(decided: Decided, operator: str, now: datetime) -> bytes:
    """The statement as JSON. `operator`: the version of the operator.

    Raises:
        NothingPinned: the revision's model has no digest, so that there is no subject.
    """
    snapshot = decided.observed.snapshots[decided.verdict.revision]
    body = {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(snapshot),
        "predicateType": PREDICATE_TYPE,
        "predicate": _predicate(decided, snapshot, operator, now),
    }
    encoded = b""
    for smaller in _smaller(body):
        encoded = json.dumps(smaller, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        if len(encoded) <= MOST_PAYLOAD_BYTES:
            break
    return encoded


def _subjects(snapshot: Snapshot) -> list[Json]:
    """The files of the model; and the commit or manifest that they are from."""
    model, loaded = snapshot.inputs.model, snapshot.weights
    named = model.revision or ""
    digest = loaded.digest if loaded else named if weights.is_digest(named) else ""
    if not digest:
        raise NothingPinned("no pod has reported what it loaded, so that no digest says which model it is about")
    place = {"uri": model.uri} if len(model.uri) <= LONGEST_URI else {}
    subjects = [{"name": "files", **place, "digest": {"sha256": digest.removeprefix("sha256:")}}]
    if loaded and loaded.commit and model.scheme == "hf":
        subjects.append({"name": "commit", **place, "digest": {"gitCommit": loaded.commit}})
    elif loaded and loaded.commit and model.scheme == "oci":
        subjects.append({"name": "manifest", **place, "digest": {"sha256": loaded.commit}})
    return subjects


def _predicate(decided: Decided, snapshot: Snapshot, operator: str, now: datetime) -> Json:
    verdict, metadata = decided.verdict, decided.obj["metadata"]
    kind, name = labels.object_of(metadata["name"])
    rollout = _rollout(decided)
    model = snapshot.inputs.model
    facts = {
        "verdict": verdict.verdict,
        "reason": verdict.reason[:LONGEST_REASON],
        "decidedAt": format_time(verdict.at),
        "signedAt": format_time(now),
        "operator": {"name": labels.FIELD_MANAGER, "version": operator},
        "deployment": {"kind": kind, "namespace": metadata["namespace"], "name": name, "uid": metadata["uid"]},
        "revision": verdict.revision,
        "attempt": rollout.attempt if rollout else None,
        "version": model.version,
        "registry": snapshot.inputs.registry.uri if snapshot.inputs.registry else None,
        "requests": list(_requests(decided, rollout)),
        "decisions": list(_decisions(decided)),
        # The one that rejects comes first: it has its rows where there is room for few.
        "analyses": sorted(_analyses(decided, rollout), key=lambda one: one.get("outcome") != Outcome.FAIL),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _rollout(decided: Decided) -> Rollout | None:
    """The rollout that concluded it: a promotion ends it, so that only the former status has it."""
    known = (decided.former.rollout, decided.status.rollout)
    return next((one for one in known if one and one.revision == decided.verdict.revision), None)


def _requests(decided: Decided, rollout: Rollout | None) -> Iterator[Json]:
    """What people requested of the attempt in the spec, and the managers of these fields."""
    written = (decided.obj.get("spec") or {}).get("rollout") or {}
    revision = decided.verdict.revision
    named = (revision, rollout.attempt_token) if rollout else (revision,)
    for intent in INTENTS:
        token = str(written.get(intent) or "")
        parts = token.split("/")
        if token and (token in named or "/".join(parts[:2]) in named):
            path = ("f:spec", "f:rollout", f"f:{intent}")
            yield {"field": f"spec.rollout.{intent}", "value": token, "by": writers(decided.obj, path)}


def _decisions(decided: Decided) -> list[Json]:
    """The last transitions of the attempt up to the verdict."""
    attempt: list[Decision] = []
    for one in decided.status.decisions:
        if one.at > decided.verdict.at:
            break
        attempt = [one] if one.row in BEGINNINGS else [*attempt, one]
    shown = [one for one in attempt if one.row not in COUNTING][-MOST_DECISIONS:]
    return [{"at": format_time(one.at), "row": one.row} for one in shown]


def _analyses(decided: Decided, rollout: Rollout | None) -> Iterator[Json]:
    """The AnalysisRuns that the rollout acted on, as the operator wrote them: no others are signed."""
    uid = decided.obj["metadata"]["uid"]
    for field in FIELDS if rollout else ():
        reference = getattr(rollout, field)
        stored = decided.observed.analysis_runs.get(reference.run) if reference else None
        if stored and stored.run and why_lost(reference, stored, uid) is None:
            yield _analysis(stored, stored.run)


def _analysis(stored: StoredRun, run: RunStatus) -> Json:
    found: Json = {
        "run": {"name": stored.name, "uid": stored.uid, "sequence": run.sequence},
        "id": run.id,
        "template": {"name": run.template, "hash": run.template_hash},
        "startedAt": format_time(run.started_at),
        "readAt": format_time(run.read_at),
    }
    verdict = run.verdict
    if verdict is None:
        return found
    found |= {"outcome": str(verdict.outcome), "reason": str(verdict.reason)}
    found |= {"evidence": verdict.evidence, "threshold": verdict.threshold, "n": verdict.samples}
    if verdict.extra:
        extra = verdict.extra
        found["extraPerThousand"] = {"estimate": extra.estimate, "bound": extra.at_most, "limit": extra.limit}
    series = {item.metric: item for item in run.series}
    rows = sorted(verdict.metrics, key=lambda row: (row.name != verdict.metric, _rank(row)))
    return found | {"metrics": [_metric(row, series.get(row.name)) for row in rows]}


def _rank(row: MetricRow) -> int:
    return _TELLING.index(Finding(row.finding)) if row.finding in _TELLING else len(_TELLING)


def _metric(row: MetricRow, series: MetricSeries | None) -> Json:
    found: Json = {
        "name": row.name,
        "finding": row.finding,
        "n": [row.canary_samples, row.stable_samples],
        "bad": [row.canary_bad, row.stable_bad],
    }
    if series and series.points:
        last = series.points[-1]
        found |= {"unit": series.unit, "low": last.low, "bound": last.high, "limit": series.limit}
    return found


def _smaller(body: Json) -> Iterator[Json]:
    """The statement, then with less and less of what no reader needs to know what it is about."""
    yield body
    predicate: Json = body["predicate"]
    analyses: list[Json] = predicate["analyses"]
    total = sum(len(one.get("metrics", ())) for one in analyses)
    for omitted in range(1, total + 1):
        left = total - omitted
        kept = []
        for one in analyses:
            rows = one.get("metrics", [])[:left]
            left -= len(rows)
            kept.append({**one, "metrics": rows})
        predicate = {**body["predicate"], "analyses": kept, "metricsOmitted": omitted}
        yield {**body, "predicate": predicate}
    predicate = predicate | {"reason": predicate["reason"][:SHORT_REASON], "decisions": [], "requests": []}
    yield {**body, "predicate": predicate}
    bare = [{name: value for name, value in one.items() if name != "uri"} for one in body["subject"]]
    lost = {"analyses", "version", "registry"}
    yield {
        **body,
        "subject": bare,
        "predicate": {name: value for name, value in predicate.items() if name not in lost} | {"analyses": []},
    }
