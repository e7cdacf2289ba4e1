"""The former revisions of a ModelDeployment, from its ControllerRevisions; pure."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import yaml

from slipway_cli.api import REVISION_LABEL, Json
from slipway_cli.objects.deployment import Deployment
from slipway_cli.objects.times import parse_time


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """One revision as its ControllerRevision has it. `data`: all that its pods follow from."""

    ordinal: int
    revision: str
    version: str | None
    image: str
    created_at: datetime | None
    data: Json = field(repr=False)


def read_records(items: Iterable[Json], owner_uid: str) -> list[RevisionRecord]:
    """The records of one ModelDeployment, oldest first."""
    own = (item for item in items if _is_owned(item, owner_uid))
    return sorted((_record(item) for item in own), key=lambda record: record.ordinal)


def find_revision(known: Sequence[RevisionRecord], which: str) -> str | None:
    """The revision that an ordinal or a hash names; None when it is not known."""
    return next((item.revision for item in known if which in (item.revision, str(item.ordinal))), None)


def find_role(of: Deployment, revision: str) -> str:
    """The role of a revision now; empty for one that only the history knows."""
    roles = {of.previous: "previous", of.stable: "stable"}
    if of.rollout and of.rollout.revision == revision != of.stable:
        return "rejected" if of.rollout.is_rejected else "canary" if of.stable else "first"
    return roles.get(revision) or ("rejected" if of.last_rejection(revision) else "")


def choose_pair(of: Deployment, known: Sequence[RevisionRecord], named: Sequence[str]) -> tuple[str, str]:
    """The two revisions to compare: both that are named; one and the stable one; with none named, the last change.

    Raises:
        LookupError: with a sentence, when one of them is not known.
    """
    if len(named) == 2:
        return _known(known, named[0]), _known(known, named[1])
    if named:
        return _known(known, named[0]), _serving(of)
    if of.rollout and of.stable and of.rollout.revision != of.stable:
        return of.stable, of.rollout.revision
    if of.previous is None:
        raise LookupError("there is one revision only, and nothing to compare it with")
    return of.previous, _serving(of)


def compare(known: Sequence[RevisionRecord], before: str, after: str) -> list[str]:
    """A unified diff of all that makes the pods of two revisions differ; empty when nothing does.

    Raises:
        LookupError: with a sentence, when one of them is not known.
    """
    by_revision = {item.revision: item for item in known}
    old, new = by_revision[_known(known, before)], by_revision[_known(known, after)]
    return list(difflib.unified_diff(_text(old), _text(new), _title(old), _title(new), lineterm="", n=2))


def _serving(of: Deployment) -> str:
    if of.stable is None:
        raise LookupError("no revision was promoted yet")
    return of.stable


def _known(known: Sequence[RevisionRecord], which: str) -> str:
    found = find_revision(known, which)
    if found is None:
        there = ", ".join(f"{item.ordinal} ({item.revision})" for item in known) or "none"
        raise LookupError(f"revision {which} is not in the history; there are: {there}")
    return found


def _title(record: RevisionRecord) -> str:
    return f"{record.ordinal} {record.revision}"


def _text(record: RevisionRecord) -> list[str]:
    text: str = yaml.safe_dump(dict(record.data), sort_keys=True, allow_unicode=True)
    return text.splitlines()


def _record(item: Json) -> RevisionRecord:
    data = item.get("data") or {}
    return RevisionRecord(
        ordinal=int(item.get("revision", 0)),
        revision=item["metadata"]["labels"][REVISION_LABEL],
        version=((data.get("inputs") or {}).get("model") or {}).get("version"),
        image=str(data.get("image", "")),
        created_at=parse_time(item["metadata"].get("creationTimestamp")),
        data=data,
    )


def _is_owned(item: Json, uid: str) -> bool:
    metadata = item["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return REVISION_LABEL in (metadata.get("labels") or {}) and any(owner.get("uid") == uid for owner in owners)
