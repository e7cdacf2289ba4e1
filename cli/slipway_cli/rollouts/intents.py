"""The patch of the spec for each command that changes a rollout, or why there is nothing to do; pure.

The patches carry tokens of the status, which name their target: a patch that comes late, or twice, has no effect, so
none of them needs a precondition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipway_cli.objects import history
from slipway_cli.objects.deployment import ANALYZING, FIRST, PAUSED, PROMOTING, Deployment, RolloutStatus
from slipway_cli.objects.history import RevisionRecord


@dataclass(frozen=True, slots=True)
class Change:
    """A merge patch of the spec, and what it does in one sentence."""

    spec: dict[str, Any]
    text: str
    warning: str | None = None  # what the user should know before the change is made


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why there is nothing to do, and what to do instead."""

    why: str


Decision = Change | Nothing


def promote(of: Deployment) -> Decision:
    """End the pause or analysis that the rollout is in."""
    rollout = of.rollout
    if refusal := _not_stepping(of, "promote"):
        return refusal
    assert rollout, "there is a rollout, or it was refused"
    if of.paused:
        return Nothing(f"{of.name} is held by spec.paused: run `slipway resume {of.name}` first")
    if rollout.state not in (PAUSED, ANALYZING):
        what = f"{rollout.step_of_steps} is no pause and ends by itself ({of.message})"
        return Nothing(f"{what}: run `slipway promote {of.name} --full` to skip all steps that are left")
    if of.intents.get("promote") == rollout.token:
        return _already_requested(f"the promotion of {rollout.step_of_steps} (token {rollout.token})")
    what = "the pause" if rollout.state == PAUSED else "the analysis, without a verdict,"
    text = f"{_revision(of, rollout.revision)} goes on: {what} at {rollout.step_of_steps} ends"
    return Change({"rollout": {"promote": rollout.token}}, text)


def promote_full(of: Deployment) -> Decision:
    """Skip the steps that are left."""
    rollout = of.rollout
    if refusal := _not_stepping(of, "promote"):
        return refusal
    assert rollout, "there is a rollout, or it was refused"
    if of.intents.get("promoteFull") == rollout.attempt_token:
        return _already_requested(f"the full promotion of {rollout.attempt_token}")
    held = f"; spec.paused holds it until `slipway resume {of.name}`" if of.paused else ""
    text = (
        f"{_revision(of, rollout.revision)} skips the steps that are left and is promoted when its pods are ready{held}"
    )
    return Change({"rollout": {"promoteFull": rollout.attempt_token}}, text)


def abort(of: Deployment) -> Decision:
    """Reject the attempt in flight."""
    rollout = of.rollout
    if rollout is None:
        return _nothing_in_flight(of, "abort")
    if rollout.is_rejected:
        return Nothing(f"revision {rollout.revision} is rejected already: {rollout.why_rejected}")
    if rollout.state == FIRST:
        what = f"{of.name} brings up its first revision, and there is no other to return to"
        return Nothing(f"{what}: change spec.model, or delete it")
    if of.intents.get("abort") == rollout.attempt_token:
        return _already_requested(f"the abort of {rollout.attempt_token}")
    attempt = f"{_revision(of, rollout.revision)}, attempt {rollout.attempt}"
    text = f"{attempt}, is rejected; stable {of.stable} takes its traffic"
    return Change({"rollout": {"abort": rollout.attempt_token}}, text)


def retry(of: Deployment) -> Decision:
    """Try the rejected revision again."""
    rollout = of.rollout
    if rollout is None:
        return _nothing_in_flight(of, "retry")
    if not rollout.is_rejected:
        return Nothing(f"revision {rollout.revision} was not rejected: it is on its way ({of.message})")
    if rollout.revision != of.wanted:
        return Nothing(f"revision {rollout.revision} is not what the spec describes any more: {of.wanted} is")
    if of.intents.get("retry") == rollout.next_attempt_token:
        return _already_requested(f"the retry {rollout.next_attempt_token}")
    text = f"{_revision(of, rollout.revision)} is tried again, attempt {rollout.attempt + 1}"
    return Change({"rollout": {"retry": rollout.next_attempt_token}}, text)


def undo(of: Deployment, records: Sequence[RevisionRecord], to: str | None) -> Decision:
    """Run a former revision in place of the one that the spec describes."""
    if of.current is None:
        return Nothing(f"{of.name} has no revision yet")
    target = history.find_revision(records, to) if to else _before(of)
    if target is None:
        return _no_target(of, records, to)
    if target == of.wanted:
        return Nothing(f"revision {target} is what {of.name} is to run already")
    if target == of.current:
        text = f"the rollback ends: {of.name} goes to revision {target}, as its spec describes"
        token = f"{target}/{target}" if of.alarm_rollback else None
        return Change({"rollout": {"rollbackTo": token}}, text, _warn_of_rejection(of, target))
    if all(item.revision != target for item in records):
        return Nothing(f"revision {target} is forgotten (spec.revisionHistoryLimit): write its model into the spec")
    text = f"{of.name} goes back to revision {target} without steps; the rollback ends when spec.model is changed"
    return Change({"rollout": {"rollbackTo": f"{of.current}/{target}"}}, text, _warn_of_rejection(of, target))


def _no_target(of: Deployment, records: Sequence[RevisionRecord], to: str | None) -> Nothing:
    others = [item for item in records if item.revision != of.wanted]
    known = ", ".join(f"{item.ordinal} ({item.revision})" for item in others)
    if to:
        return Nothing(f"revision {to} of {of.name} is not in its history; others there are: {known or 'none'}")
    why = f"no revision of {of.name} served before {of.stable}"
    if not others:
        return Nothing(why)
    command = f"slipway undo {of.name} --to {others[-1].ordinal}"
    return Nothing(f"{why}; to run another one, name it: `{command}`; there are: {known}")


def pause(of: Deployment) -> Decision:
    """Hold the rollout where it is."""
    if of.paused:
        return Nothing(f"{of.name} is paused already")
    what = (
        "the rollout is held where it is" if of.rollout and not of.rollout.is_rejected else "the next rollout is held"
    )
    return Change({"paused": True}, f"{what}; healing, scaling and abort stay live")


def resume(of: Deployment) -> Decision:
    """Let the rollout go on."""
    if of.paused:
        return Change({"paused": False}, f"{of.name} is not held any more")
    if of.rollout and of.rollout.state == PAUSED:
        where = f"it waits at a pause of its steps, {of.rollout.step_of_steps}"
        return Nothing(f"{of.name} is not held by spec.paused: {where}: run `slipway promote {of.name}`")
    return Nothing(f"{of.name} is not paused")


def _not_stepping(of: Deployment, command: str) -> Nothing | None:
    """Why the rollout has no step that a command could end; None if it has one."""
    rollout = of.rollout
    if rollout is None:
        return _nothing_in_flight(of, command)
    if rollout.is_rejected:
        why = f"revision {rollout.revision} was rejected: {rollout.why_rejected}"
        return Nothing(f"{why}; run `slipway retry {of.name}` to try it again")
    if rollout.state == FIRST:
        return Nothing(f"{of.name} brings up its first revision, which has no steps: {of.message}")
    if rollout.state == PROMOTING:
        return Nothing(f"revision {rollout.revision} has passed its steps already: {of.message}")
    return None


def _nothing_in_flight(of: Deployment, command: str) -> Nothing:
    late = "" if of.is_answered else "; the operator has not looked at the last change of the spec yet: try again"
    return Nothing(f"there is nothing to {command}: no rollout of {of.name} is in flight ({of.message}){late}")


def _already_requested(what: str) -> Nothing:
    return Nothing(f"{what} was requested already, and the operator has not acted on it yet")


def _before(of: Deployment) -> str | None:
    """The revision that served before: stable while another one is in flight or rejected, else that before stable."""
    rollout: RolloutStatus | None = of.rollout
    return of.stable if rollout and rollout.revision != of.stable else of.previous


def _warn_of_rejection(of: Deployment, revision: str) -> str | None:
    rejection = of.last_rejection(revision)
    return f"{_revision(of, revision)} was rejected, {rejection}" if rejection else None


def _revision(of: Deployment, revision: str) -> str:
    version = of.version_of(revision)
    return f"revision {revision} ({version})" if version else f"revision {revision}"
