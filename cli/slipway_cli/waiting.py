"""`slipway wait`: which state is waited for, whether it is reached, and whether it never will be."""

from collections.abc import Callable
from dataclasses import dataclass

from slipway_cli.deployment import Deployment
from slipway_cli.errors import Rejected, TimedOut, Unreachable
from slipway_cli.moments import duration

POLL_S = 0.5

Read = Callable[[], Deployment]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Goal:
    """`healthy`, `paused`, or `stable` with the revision or version that is to be stable."""

    kind: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}={self.revision}" if self.revision else self.kind


def parse(text: str) -> Goal:
    """Read `healthy`, `paused` or `stable=REVISION`.

    Raises:
        ValueError: when it is something else.
    """
    kind, _, revision = text.partition("=")
    if (kind in ("healthy", "paused") and text == kind) or (kind == "stable" and revision):
        return Goal(kind, revision or None)
    raise ValueError(f"'{text}' cannot be waited for: write healthy, paused or stable=REVISION")


def is_reached(goal: Goal, of: Deployment) -> bool:
    """Whether it is so now; a status that answers an older spec confirms nothing about the present one."""
    if goal.kind == "stable":
        return of.stable is not None and goal.revision in (of.stable, of.version_of(of.stable))
    if not of.is_answered:
        return False
    if goal.kind == "paused":
        return of.phase == "Paused"
    # One that sleeps has nothing left to do. The spec's own revision is stable where a rollback is asked for that the
    # history lacks, as in an object made again from `kubectl get -o yaml`: the operator goes by the spec then.
    return of.phase in ("Healthy", "Asleep") and of.rollout is None and of.stable in (of.wanted, of.current)


def failure(of: Deployment) -> str | None:
    """Why no waiting helps; None while it may.

    Pods that are missing for a moment are no failure, nor is the rejection of a revision that nobody wants any more.
    """
    if not of.is_answered or of.phase != "Degraded":
        return None
    invalid = of.condition("Accepted").get("status") == "False"
    ended = of.rollout is not None and (of.rollout.is_rejected or of.condition("Progressing").get("status") == "False")
    wanted = of.rollout is not None and of.rollout.revision == of.wanted
    return of.message if invalid or (ended and wanted) else None


def until(
    goal: Goal,
    read: Read,
    timeout_s: float,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Tell,
) -> Deployment:
    """Ask until the goal is reached, and tell each new message on the way.

    Raises:
        TimedOut: when it is not reached in time.
        Rejected: when it never will be.
        Missing: when there is no such ModelDeployment.
    """
    deadline, said = clock() + timeout_s, ""
    while True:
        try:
            seen = read()
            sentence = f"{seen.phase}: {seen.message}"
        except Unreachable as error:
            seen, sentence = None, str(error)
        if seen and is_reached(goal, seen):
            return seen
        if seen and (why := failure(seen)):
            raise Rejected(f"{seen.name} does not reach {goal}: {why}")
        if sentence != said:
            tell(sentence)
            said = sentence
        if clock() >= deadline:
            raise TimedOut(f"{goal} was not reached within {duration(timeout_s)}: {said}")
        sleep(min(POLL_S, max(0.0, deadline - clock())))
