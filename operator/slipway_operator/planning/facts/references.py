"""References to revisions that nothing in the cluster resolves.

What is missing is never guessed: such a reference holds what serves, and a condition names the remedy. A record that a
workload has a copy of does not count as missing: it is made again.
"""

from dataclasses import dataclass

from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.planning.facts.revision import rollback_target

ROLLBACK_TARGET, STABLE_RECORD = "RollbackTargetNotFound", "StableRecordNotFound"
STABLE_REVISION, FORMER_RECORD = "StableRevisionNotFound", "FormerRecordNotFound"


@dataclass(frozen=True, slots=True)
class Missing:
    """A reference that cannot be resolved."""

    reason: str  # of the condition ResolvedRefs
    what: str  # what is missing
    remedy: str

    @property
    def holds(self) -> bool:
        """Whether nothing begins or moves until it is resolved."""
        return self.reason == ROLLBACK_TARGET

    @property
    def is_former(self) -> bool:
        """Whether it concerns no revision that serves or should serve."""
        return self.reason == FORMER_RECORD


def sentence(missing: Missing | None) -> str:
    """The beginning of the message while a reference holds everything; else empty."""
    return f"held: {missing.what}; " if missing and missing.holds else ""


def missing(spec: Spec, current: str, observed: Observed, status: Status) -> Missing | None:
    """The most important reference that cannot be resolved; None when all can."""
    recorded = observed.snapshots.keys() | {current, None}
    target, stable, former = rollback_target(spec, current), status.stable_revision, status.previous_revision
    if target not in recorded:
        return _of_target(current, str(target), stable)
    if stable not in recorded:
        return _of_stable(str(stable)) if stable in observed.workloads else _without_objects(str(stable))
    return _of_former(str(former)) if former not in recorded else None


def _of_target(current: str, target: str, stable: str | None) -> Missing:
    held = f"revision {stable} serves on, and nothing else is rolled out" if stable else "nothing is rolled out"
    return Missing(
        ROLLBACK_TARGET,
        f"spec.rollout.rollbackTo is {current}/{target}, and revision {target} has no ControllerRevision",
        f"{held} until this is resolved; restore the ControllerRevision from a backup, name another revision, or "
        "remove spec.rollout.rollbackTo to roll out what spec.model describes",
    )


def _of_stable(stable: str) -> Missing:
    return Missing(
        STABLE_RECORD,
        f"stable revision {stable} has no ControllerRevision",
        "its pods serve on, but lost objects of it cannot be made again; restore the ControllerRevision from a backup, "
        "or roll out another revision",
    )


def _without_objects(stable: str) -> Missing:
    return Missing(
        STABLE_REVISION,
        f"stable revision {stable} has neither ControllerRevision nor ReplicaSet",
        "no other revision takes its requests; restore the ControllerRevision from a backup, or set "
        "spec.rollout.promoteFull to the attempt of the revision in flight",
    )


def _of_former(former: str) -> Missing:
    return Missing(
        FORMER_RECORD,
        f"former revision {former} has no ControllerRevision",
        "it cannot be rolled back to; restore the ControllerRevision from a backup, or go on without it: the next "
        "revision that is promoted ends this condition",
    )
