"""Which revision a spec describes: identity, history and rollback."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.model.deployment.strategy import Step
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs
from slipway_operator.planning.facts import weights

HASH_VERSION = "v1"  # a new algorithm gets a new prefix; existing revisions are found by snapshot, so nothing restarts
TEMPLATE_VERSION = 3  # how new revisions are rendered; see manifests/pods/workload.py
HASH_LENGTH = 10
KEPT = 1024  # hashes of step lists


def revision_hash(inputs: PodInputs) -> str:
    """Identity of a revision: the user input that a pod depends on, and nothing else.

    Defaults, the operator's version and its rendering are excluded, so an operator upgrade restarts no pod.
    """
    return _digest(f"{HASH_VERSION}|{inputs.canonical}")


@lru_cache(KEPT)
def steps_hash(steps: tuple[Step, ...]) -> str:
    """Identity of a step list; a rollout compares it in every reconcile."""
    return _digest(repr(steps))


def wanted_revision(spec: Spec, snapshots: Mapping[str, Snapshot], status: Status) -> tuple[str, str]:
    """(the revision to run, the revision that the spec describes): they differ during a rollback.

    A rollback to a revision without a record holds what there is: neither its target nor another one can be guessed.
    """
    current = described_revision(spec.inputs, snapshots)
    target = rollback_target(spec, current)
    if target is None and (former := alarm_rollback(spec, status, current)) in snapshots:
        target = former
    if target is None or target in snapshots:
        return target or current, current
    held = status.rollout.revision if status.rollout else status.stable_revision
    return held or target, current


def rollback_target(spec: Spec, current: str) -> str | None:
    """The revision to run in place of the one that the spec describes, by spec.rollout.rollbackTo; None without one."""
    source, _, target = (spec.intents.rollback_to or "").partition("/")
    return target if source == current != target else None


def alarm_rollback(spec: Spec, status: Status, current: str) -> str | None:
    """The revision to run in place of the one that the spec describes, because of an alarm; None without one.

    It ends with the spec that had the alarm, where spec.accuracy no longer rolls back, and by any rollbackTo of that
    spec: CURRENT/CURRENT runs what the spec describes.
    """
    is_named = (spec.intents.rollback_to or "").startswith(f"{current}/")
    if is_named or spec.accuracy is None or not spec.accuracy.rolls_back or status.accuracy is None:
        return None
    source, _, target = (status.accuracy.rollback or "").partition("/")
    return target if target and source == current != target else None


def attempt_of(token: str | None, revision: str) -> int:
    """The attempt of this revision that a token names; a revision alone is its first attempt; 0 where it names none."""
    name, _, rest = (token or "").partition("/")
    return int(rest.partition("/")[0] or 1) if name == revision else 0


def described_revision(inputs: PodInputs, snapshots: Mapping[str, Snapshot]) -> str:
    """A known revision with the same inputs, else their hash: so a new hash algorithm renames no known revision."""
    same = (item.revision for item in snapshots.values() if item.inputs.canonical == inputs.canonical)
    return next(same, None) or revision_hash(inputs)


def same_weights(one: Snapshot, other: Snapshot) -> bool:
    """Whether two revisions have the same weights and dtype, so that only image or arguments can change responses."""
    return _numbers(one.inputs.model) == _numbers(other.inputs.model) and not weights.differ(one, other)


def next_ordinal(snapshots: Mapping[str, Snapshot]) -> int:
    """Number of the next revision, counted from 1."""
    return max((snapshot.ordinal for snapshot in snapshots.values()), default=0) + 1


def in_window(snapshots: Mapping[str, Snapshot], stable: str | None, wanted: str, revisions: int) -> bool:
    """Whether a former revision is among the last ones before stable (Argo's rollbackWindow)."""
    if stable is None or wanted not in snapshots or stable not in snapshots:
        return False
    ordinal, newest = snapshots[wanted].ordinal, snapshots[stable].ordinal
    return ordinal < newest and sum(ordinal <= item.ordinal < newest for item in snapshots.values()) <= revisions


def forgotten(snapshots: Mapping[str, Snapshot], keep: Iterable[str | None], limit: int) -> list[str]:
    """Revisions beyond the history limit, oldest first; revisions in `keep` are in use and do not count."""
    kept = set(keep)
    former = sorted((item for item in snapshots.values() if item.revision not in kept), key=lambda item: item.ordinal)
    return [item.revision for item in former[: max(0, len(former) - limit)]]


def _numbers(model: Model) -> tuple[str | None, ...]:
    return model.uri, model.revision, model.quantization, model.dtype


def _digest(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:HASH_LENGTH]
