"""Which object is damaged how, in which phase, and whether the operator restarts right after it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from slipway_operator.kube.resources import (
    ANALYSIS_RUNS,
    ANALYSIS_TEMPLATES,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    ENDPOINT_SLICES,
    LEASES,
    REPLICA_SETS,
    SECRETS,
    SERVICES,
    TENANTS,
    Resource,
)

PHASES = ("canary in a step", "rollback held", "aborted", "blue-green preview", "asleep")
DAMAGES = ("deleted", "emptied", "older copy", "foreign owner")
ANALYZED = ("canary in a step", "blue-green preview")  # phases in which an AnalysisRun is acted on
OF_A_REVISION = (CONTROLLER_REVISIONS, REPLICA_SETS, SERVICES)
# Objects that all ModelDeployments of a release share, by name.
SHARED = (
    (ENDPOINT_SLICES, "slipway-gateway-admin-1"),
    (LEASES, "slipway-operator"),
    (SECRETS, "slipway-keys"),
    (SECRETS, "slipway-tenant-key"),
    (CONFIG_MAPS, "slipway-model-names"),
    (TENANTS, "matrix"),
)
# Those of them that the operator repairs within a minute; others are put back by whoever made them.
REPAIRED = ("slipway-operator", "slipway-keys", "slipway-model-names")
# Kinds that a backup may lack; no object is a Tenant of the namespace: then everything is restored.
NOT_RESTORED = (TENANTS, CONTROLLER_REVISIONS, REPLICA_SETS, SERVICES, ANALYSIS_TEMPLATES)
PARTS = 10  # of which an ordinary run takes one


@dataclass(frozen=True)
class Cell:
    """One ModelDeployment of the matrix, with what happens to an object of its own."""

    name: str
    kind: Resource
    damage: str
    phase: str
    role: str  # of the revision whose object it is: stable or other
    restarts: bool

    def __str__(self) -> str:
        restart = ", and the operator restarts" if self.restarts else ""
        return f"{self.name}: {self.phase}, {self.kind.kind} of {self.role}: {self.damage}{restart}"


@dataclass(frozen=True)
class Round:
    """What happens to an object that all ModelDeployments share."""

    kind: Resource
    name: str
    damage: str
    restarts: bool

    def __str__(self) -> str:
        restart = ", and the operator restarts" if self.restarts else ""
        return f"{self.kind.kind} {self.name}: {self.damage}{restart}"


def cells(part: int) -> list[Cell]:
    """One of PARTS parts of the cells; each part has all phases and all kinds of damage."""
    return [cell for index, cell in enumerate(_cells()) if _part(index) == part % PARTS]


def rounds(part: int) -> list[Round]:
    """The same for shared objects."""
    return [one for index, one in enumerate(_rounds()) if _part(index) == part % PARTS]


def restores(part: int | None = None) -> list[Cell]:
    """Cells whose objects are restored without one kind; a part has each phase and each kind once."""
    parts = range(len(NOT_RESTORED)) if part is None else [part]
    return [
        Cell(
            f"r{turn % len(NOT_RESTORED)}{index}",
            NOT_RESTORED[(turn + index) % len(NOT_RESTORED)],
            "not restored",
            phase,
            "all",
            True,
        )
        for turn in parts
        for index, phase in enumerate(PHASES)
    ]


def _part(index: int) -> int:
    """On a diagonal, because phases and objects repeat after numbers that divide PARTS."""
    return (index + index // PARTS) % PARTS


def _cells() -> Iterator[Cell]:
    of_revisions = itertools.product(OF_A_REVISION, ("stable", "other"))
    objects = (*of_revisions, (ANALYSIS_TEMPLATES, "stable"))
    of_runs = itertools.product([(ANALYSIS_RUNS, "other")], DAMAGES, ANALYZED)
    listed = itertools.chain(itertools.product(objects, DAMAGES, PHASES), of_runs)
    for number, ((kind, role), damage, phase) in enumerate(listed):
        yield Cell(f"c{number}", kind, damage, phase, role, restarts=number % 2 == 1)


def _rounds() -> Iterator[Round]:
    for number, (damage, (kind, name)) in enumerate(itertools.product(DAMAGES, SHARED)):
        yield Round(kind, name, damage, restarts=(number + number // len(SHARED)) % 2 == 1)
