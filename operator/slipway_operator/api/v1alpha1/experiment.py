"""Experiment: a standing A/B test. Its spec, and what gateways follow of it, are `slipway_contracts.experiments`."""

from dataclasses import dataclass
from typing import Annotated

from slipway_contracts.api.markers import AtMost, Definition, ListMap, OneOf, PrinterColumn, custom_resource, rule
from slipway_contracts.api.types import ApiType, Int32, Int64, strict
from slipway_contracts.experiments.assignment import Assignment
from slipway_contracts.experiments.spec import MOST_ARMS, MOST_OUTCOMES, PLURAL, ExperimentSpec
from slipway_operator.api.v1alpha1.status import Condition

PENDING, RUNNING, PAUSED, ENDED = PHASES = ("Pending", "Running", "Paused", "Ended")
MOST_GATEWAYS = 16  # with counts of their own
MOST_VERDICT = 1024
_MOST_GROUPS = MOST_ARMS + 1  # arms and the hold-out


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """Values of an outcome at a gateway."""

    name: str
    """Name of the outcome."""
    units: Int64 = 0
    """Units with a value."""
    sum: float = 0.0
    """Sum of their values, each from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ArmCounts:
    """Counts of an arm, or of the units that are held out, at a gateway."""

    name: str
    """Name of the arm."""
    units: Int64 = 0
    """Units, each once."""
    requests: Int64 = 0
    """Requests."""
    elsewhere: Int64 = 0
    """Requests that another deployment or revision answered."""
    outcomes: Annotated[tuple[OutcomeCounts, ...], AtMost(MOST_OUTCOMES)] = ()
    """Values of outcomes."""


@dataclass(frozen=True, slots=True)
class GatewayCounts:
    """Counts of one process of a gateway, kept when it is gone. Those of the first ones are added up."""

    incarnation: Annotated[str, AtMost(64)] = ""
    """Identifies the process. Empty for those that are added up."""
    shared: bool = False
    """Whether it counts units together with others."""
    rank: Int32 = 0
    """Decides its part of the error rate. 0: it is no evidence."""
    forgotten: Int64 = 0
    """Units that it may have counted again."""
    arms: Annotated[tuple[ArmCounts, ...], AtMost(_MOST_GROUPS)] = ()
    """Its counts."""


@dataclass(frozen=True, slots=True)
class OutcomeStatus:
    """Outcome of an arm. The intervals hold together at any time with a probability of 95 %."""

    name: str
    """Name of the outcome."""
    units: Int64 = 0
    """Units with a value."""
    mean: float | None = None
    """Mean of their values."""
    lower: float | None = None
    """Lower end of the interval of the mean."""
    upper: float | None = None
    """Upper end of it."""
    difference: float | None = None
    """Mean minus that of the control."""
    difference_lower: float | None = None
    """Lower end of the interval of the difference. Above 0: it is larger than that of the control."""
    difference_upper: float | None = None
    """Upper end of it. Below 0: it is smaller than that of the control."""


@dataclass(frozen=True, slots=True)
class ArmStatus:
    """An arm, or the units that are held out."""

    name: str
    """Name of the arm."""
    weight: Int32 | None = None
    """Percent of the units."""
    units: Int64 = 0
    """Units that came to it. Gateways without Redis each count a unit once."""
    requests: Int64 = 0
    """Requests."""
    elsewhere: Int64 = 0
    """Requests that another deployment or revision answered, as after a fallback."""
    outcomes: Annotated[tuple[OutcomeStatus, ...], AtMost(MOST_OUTCOMES)] = ()
    """Outcomes."""


@strict
@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """What gateways follow, and what they counted. The operator writes it."""

    observed_generation: Int64 = 0
    """metadata.generation that the status was computed from."""
    phase: Annotated[str, OneOf(PHASES)] = PENDING
    """Pending, Running, Paused or Ended."""
    verdict: Annotated[str, AtMost(MOST_VERDICT)] = ""
    """What the outcomes prove."""
    assignment: Assignment | None = None
    """What gateways follow. A spec that is not accepted changes nothing of it."""
    arms: Annotated[tuple[ArmStatus, ...], AtMost(_MOST_GROUPS)] = ()
    """Arms with their counts."""
    gateways: Annotated[tuple[GatewayCounts, ...], AtMost(MOST_GATEWAYS + 2)] = ()
    """Counts by gateway, from which those of arms are computed."""
    lost: Int64 = 0
    """Exposures of any experiment that gateways lost since they began: a log does not have them."""
    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = ()
    """Accepted: gateways follow the spec. ResolvedRefs: the model and all arms are there. SampleRatioMismatch: units
    are not split by the weights, so that arms must not be compared."""


@rule(
    "self.metadata.name.size() <= 63",
    "metadata.name may have at most 63 characters: metrics and exposures name the Experiment by it",
)
@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural=PLURAL,
        short_names=("exp",),
        categories=("slipway",),
        columns=(
            PrinterColumn("Model", "string", ".spec.model", "Name that clients send."),
            PrinterColumn("Phase", "string", ".status.phase", "Whether units get arms."),
            PrinterColumn("Accepted", "string", _condition("Accepted", "status"), "Whether gateways follow the spec."),
            PrinterColumn("Reason", "string", _condition("Accepted", "reason"), "Why they do, or do not."),
            PrinterColumn("Mismatch", "string", _condition("SampleRatioMismatch", "status"), "Whether arms mismatch."),
            PrinterColumn("Arms", "string", ".spec.arms[*].name", "Names of its arms.", wide=True),
            PrinterColumn("Units", "string", ".status.arms[*].units", "Units of each arm.", wide=True),
            PrinterColumn("Verdict", "string", ".status.verdict", "What the outcomes prove.", wide=True),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
        ),
        status=True,
    )
)
class Experiment(ApiType):
    """A standing A/B test: units such as users keep an arm, which is a ModelDeployment or a revision of one, and what
    clients say about its responses is compared."""

    spec: ExperimentSpec
    status: ExperimentStatus | None = None
