"""`slipway wait`: the goal, whether it is reached, and whether it can no longer be reached."""

from collections.abc import Callable
from dataclasses import dataclass

from slipway_cli.errors import Rejected, TimedOut, Unreachable
from slipway_cli.objects.deployment import Deployment
from slipway_cli.objects.times import format_duration

POLL_S = 0.5

Read = Callable[[], Deployment]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Goal:
    """`healthy`, `paused`, or `stable` with the revision or version that is to be stable."""

    kind: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}={self.revision}" if self.revision else self.kind


def parse_goal(text: str) -> Goal:
    """Read `healthy`, `paused` or `stable=REVISION`.

    Raises:
        ValueError: when the text names no goal.
    """
    kind, _, revision = text.partition("=")
    if (kind in ("healthy", "paused") and text == kind) or (kind == "stable" and revision):
        return Goal(kind, revision or None)
    raise ValueError(f"'{text}' cannot be waited for: write healthy, paused or stable=REVISION")


def is_reached(goal: Goal, of: Deployment) -> bool:
    """Whether the goal is reached; the status of an older generation does not count."""
    if goal.kind == "stable":
        return of.stable is not None and goal.revision in (of.stable, of.version_of(of.stable))
    if not of.is_answered:
        return False
    if goal.kind == "paused":
        return of.phase == "Paused"
    # A deployment that sleeps is done. The spec's own revision is stable when `rollbackTo` names a revision that the
    # history lacks, as in an object recreated from `kubectl get -o yaml`: the operator follows the spec then.
    return of.phase in ("Healthy", "Asleep") and of.rollout is None and of.stable in (of.wanted, of.current)


def find_failure(of: Deployment) -> str | None:
    """Why the goal can no longer be reached; None while it can.

    Pods that are missing for a moment are no failure, nor is the rejection of a revision that the spec no longer
    describes.
    """
    if not of.is_answered or of.phase != "Degraded":
        return None
    invalid = of.condition("Accepted").get("status") == "False"
    ended = of.rollout is not None and (of.rollout.is_rejected or of.condition("Progressing").get("status") == "False")
    wanted = of.rollout is not None and of.rollout.revision == of.wanted
    return of.message if invalid or (ended and wanted) else None


def wait_until(
    goal: Goal,
    read: Read,
    timeout_s: float,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    report: Report,
) -> Deployment:
    """Read the status until the goal is reached, and report each new message.

    Raises:
        TimedOut: when the goal is not reached in time.
        Rejected: when the goal can no longer be reached.
        ObjectNotFound: when there is no such ModelDeployment.
    """
    deadline, printed = clock() + timeout_s, ""
    while True:
        try:
            seen = read()
            sentence = f"{seen.phase}: {seen.message}"
        except Unreachable as error:
            seen, sentence = None, str(error)
        if seen and is_reached(goal, seen):
            return seen
        if seen and (why := find_failure(seen)):
            raise Rejected(f"{seen.name} does not reach {goal}: {why}")
        if sentence != printed:
            report(sentence)
            printed = sentence
        if clock() >= deadline:
            raise TimedOut(f"{goal} was not reached within {format_duration(timeout_s)}: {printed}")
        sleep(min(POLL_S, max(0.0, deadline - clock())))
