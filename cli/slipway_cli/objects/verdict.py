"""Signed statements about verdicts, as records of revisions have them; pure. Their texts are a stranger's."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from slipway_cli.api import REVISION_LABEL, Json
from slipway_contracts.verdict_statements import ANNOTATION, PREDICATE_TYPE, STATEMENT_TYPE

WEIGHTS = "slipway.dev/weights"  # annotation of a ControllerRevision with the digest of the model's files


class NoStatement(ValueError):
    """A payload is no statement about a verdict."""


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """A revision's record, with the envelope of its statement. `digest`: of the model's files; empty: unknown."""

    revision: str
    ordinal: int
    envelope: str
    digest: str = ""


def read_signed(items: Iterable[Json], owner_uid: str) -> list[SignedRecord]:
    """The records of one ModelDeployment that have a statement, oldest first."""
    found = []
    for item in items:
        metadata = item["metadata"]
        envelope = (metadata.get("annotations") or {}).get(ANNOTATION)
        is_own = any(owner.get("uid") == owner_uid for owner in metadata.get("ownerReferences") or ())
        revision = (metadata.get("labels") or {}).get(REVISION_LABEL)
        if envelope and is_own and revision:
            found.append(SignedRecord(revision, int(item.get("revision", 0)), envelope, _digest(metadata)))
    return sorted(found, key=lambda record: record.ordinal)


def read_statement(payload: bytes) -> Json:
    """The statement in a payload.

    Raises:
        NoStatement: it is no in-toto statement, or one about something else.
    """
    try:
        found = json.loads(payload)
        types = (found["_type"], found["predicateType"])
        is_whole = isinstance(found["predicate"], dict) and isinstance(found["subject"], list)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoStatement("its payload is no in-toto statement") from error
    if types != (STATEMENT_TYPE, PREDICATE_TYPE) or not is_whole:
        raise NoStatement("its payload is no statement about the verdict of a rollout")
    statement: Json = found
    return statement


def find_difference(statement: Json, deployment: Json, record: SignedRecord) -> str | None:
    """Why a statement is not about this revision, as one that was copied from another one is not; None: it is."""
    metadata, named = deployment["metadata"], _dict(statement["predicate"], "deployment")
    if named.get("uid") != metadata["uid"] or statement["predicate"].get("revision") != record.revision:
        return "it is about another ModelDeployment or another revision"
    digests = {_dict(one, "digest").get("sha256") for one in statement["subject"] if isinstance(one, dict)}
    if record.digest and record.digest not in digests:
        return f"it is about other files than those of the revision, sha256:{record.digest}"
    return None


def describe(statement: Json) -> Iterator[str]:
    """Lines about a statement, for a terminal."""
    predicate = statement["predicate"]
    named, operator = _dict(predicate, "deployment"), _dict(predicate, "operator")
    where = f"{_text(named, 'kind')} {_text(named, 'namespace')}/{_text(named, 'name')}"
    yield f"{_text(predicate, 'verdict')} at {_text(predicate, 'decidedAt')}: {where}"
    version = _text(predicate, "version")
    attempt = f", attempt {_text(predicate, 'attempt')}" if "attempt" in predicate else ""
    yield f"revision {_text(predicate, 'revision')}{attempt}{f', version {version}' if version else ''}"
    yield f"reason {_text(predicate, 'reason')}"
    for subject in _dicts(statement, "subject"):
        digests = ", ".join(f"{_plain(name)}:{_plain(value)}" for name, value in _dict(subject, "digest").items())
        yield f"{_text(subject, 'name')} {digests} {_text(subject, 'uri')}".rstrip()
    for request in _dicts(predicate, "requests"):
        by = ", ".join(_text(one, "manager") for one in _dicts(request, "by"))
        yield f"{_text(request, 'field')}: {_text(request, 'value')} by {by or 'an unknown client'}"
    for analysis in _dicts(predicate, "analyses"):
        yield from _analysis(analysis)
    if "metricsOmitted" in predicate:
        yield f"{_text(predicate, 'metricsOmitted')} more metrics are in the AnalysisRuns alone"
    yield f"stated by {_text(operator, 'name')} {_text(operator, 'version')} at {_text(predicate, 'signedAt')}"


def _analysis(analysis: Json) -> Iterator[str]:
    run = _dict(analysis, "run")
    about = f"{_text(analysis, 'outcome')} {_text(analysis, 'reason')}".strip() or "no verdict"
    yield f"analysis {_text(run, 'name')}: {about}, {_text(analysis, 'startedAt')} to {_text(analysis, 'readAt')}"
    for metric in _dicts(analysis, "metrics"):
        counts = (" of ".join((_pair(metric, "bad"), _pair(metric, "n")))).strip()
        bounds = ""
        if "bound" in metric:
            ends = f"{_text(metric, 'low')} to {_text(metric, 'bound')}"
            bounds = f"; {_text(metric, 'unit')} {ends}, limit {_text(metric, 'limit')}"
        yield f"  {_text(metric, 'name')}: {_text(metric, 'finding')}, bad {counts} (new, stable){bounds}"


def _pair(metric: Json, name: str) -> str:
    pair = metric.get(name)
    return "/".join(map(_plain, pair)) if isinstance(pair, list) else ""


def _digest(metadata: Json) -> str:
    try:
        found = json.loads(metadata["annotations"][WEIGHTS])["digest"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return str(found).removeprefix("sha256:")


def _dict(of: Json, name: str) -> dict[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _dicts(of: Json, name: str) -> list[Json]:
    found = of.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _text(of: Json, name: str) -> str:
    value = of.get(name)
    return "" if value is None else _plain(value)


def _plain(value: object) -> str:
    """A text without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value))
