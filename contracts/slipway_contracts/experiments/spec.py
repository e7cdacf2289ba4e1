"""The spec of an Experiment: the name that it is about, units, arms, layer, and outcomes."""

from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import CelRule, ListMap, ListSet, OneOf, rule
from slipway_contracts.api.types import ApiType, Int32, Time
from slipway_contracts.model_routes.spec import CREDENTIALS, Label, PublicName

KIND, PLURAL = "Experiment", "experiments"
HEADER, USER, TENANT, API_KEY = UNITS = ("Header", "User", "Tenant", "APIKey")
HOLDOUT = "holdout"  # how units that are held out are named where arms are
FEWEST_ARMS, MOST_ARMS, MOST_OUTCOMES = 2, 8, 8
MOST_EXPERIMENTS = 32  # of a namespace that are published and have not ended
MOST_HOLDOUT = 50


@rule(
    "has(self.header) == (self.type == 'Header')",
    "header is the name of a request header, for the type Header alone: write both or neither",
)
class ExperimentUnit(ApiType):
    """What keeps its arm. Requests without it take no part."""

    type: Annotated[str, OneOf(UNITS)]
    """Header: the value of a request header. User: the field user of the request's body. Tenant: the Tenant that sends
    the request. APIKey: its key, or the subject of its token. A header and a user are those of their Tenant: the same
    value of another Tenant is another unit."""
    header: (
        Annotated[
            str,
            Field(min_length=1, max_length=128),
            CelRule(
                "self.matches('^[A-Za-z0-9!#$%&*+.^_|~-]+$')",
                "header is the name of an HTTP header: write for example X-User-Id",
            ),
            CelRule(
                f"!(self.lowerAscii() in {list(CREDENTIALS)})",
                "a credential is no unit: write the type APIKey or Tenant",
            ),
        ]
        | None
    ) = None
    """Name of the header, case-insensitive."""


class DeploymentRef(ApiType):
    """ModelDeployment of the namespace of the Experiment."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the ModelDeployment."""


@rule(
    "has(self.deploymentRef) || has(self.revision)",
    "an arm is a ModelDeployment or a revision: write deploymentRef, revision or both",
)
class ExperimentArm(ApiType):
    """One of the alternatives."""

    name: Annotated[
        Label,
        CelRule(f"self != '{HOLDOUT}'", f"{HOLDOUT} is the name of the units that are held out: write another one"),
    ]
    """Name of the arm. Units keep their arm while names and weights stay."""
    weight: Annotated[Int32, Field(ge=0, le=100)]
    """Percent of the units of the experiment."""
    deployment_ref: DeploymentRef | None = None
    """ModelDeployment that serves the arm. Default is the one that has the name of the experiment. A rollout in it
    keeps the arm."""
    revision: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Hash or version of a revision of the ModelDeployment that serves the arm while it has endpoints. Default is the
    split of its rollout."""


@rule(
    "(has(self.start) ? self.start : 0) < (has(self.end) ? self.end : 100)",
    "allocation is a range of percent: write a start below the end",
)
class Allocation(ApiType):
    """Range of the layer's units, in percent. Ranges of one layer do not overlap."""

    start: Annotated[Int32, Field(ge=0, le=99)] = 0
    """Percent at which the range begins."""
    end: Annotated[Int32, Field(ge=1, le=100)] = 100
    """Percent before which it ends. A larger end adds units; those before it keep their arms."""


@rule(
    "!has(self.control) || self.arms.exists(arm, arm.name == self.control)",
    "control is none of the arms: write the name of one",
)
@rule(
    "!has(self.startTime) || !has(self.endTime) || self.startTime < self.endTime",
    "startTime must be before endTime",
)
class ExperimentSpec(ApiType):
    """A standing A/B test."""

    model: PublicName
    """Name that clients send as "model": of a ModelRoute or a ModelDeployment of this namespace. Requests with any of
    its other names take part, too. Rules of a ModelRoute are followed first; the arm then replaces their target."""
    rules: Annotated[
        tuple[Annotated[Label, Field(description="Name of a rule.")], ...], Field(max_length=16), ListSet()
    ] = ()
    """Rules of the ModelRoute whose requests take part. Default is all."""
    unit: ExperimentUnit
    arms: Annotated[
        tuple[ExperimentArm, ...],
        Field(min_length=FEWEST_ARMS, max_length=MOST_ARMS),
        ListMap("name"),
        CelRule(
            "self.map(arm, arm.weight).sum() == 100",
            "the weights of arms are percent: write weights that are 100 together",
        ),
    ]
    """Alternatives. The first one is the control unless control names another one."""
    control: Label | None = None
    """Arm with which the others are compared."""
    layer: Label | None = None
    """Layer of the namespace. Experiments of one layer share its units and exclude each other; layers are independent.
    Default is a layer of its own."""
    allocation: Allocation = Allocation()
    holdout_percentage: Annotated[Int32, Field(ge=0, le=MOST_HOLDOUT)] = 0
    """Percent of the layer's units that are in none of its experiments. They take the ordinary way and are counted
    beside the arms. Experiments of a layer with the same percentage hold out the same units."""
    outcomes: Annotated[
        tuple[Annotated[Label, Field(description="Name of an outcome.")], ...],
        Field(max_length=MOST_OUTCOMES),
        ListSet(),
    ] = ()
    """Outcomes that clients send to /v1/feedback, from 0 to 1: the value of name in an entry, or of entries without a
    name, score and correct."""
    start_time: Time | None = None
    """Time from which units get arms. Default is at once."""
    end_time: Time | None = None
    """Time from which they get none any more."""
    paused: bool = False
    """Whether no unit gets an arm for now. Those that come back later get the same ones."""


def layer_of(name: str, spec: ExperimentSpec) -> str:
    """`namespace/layer` of an Experiment, which is `namespace/name`. One of its own has a name that no other has."""
    namespace, _, own = name.partition("/")
    return f"{namespace}/{spec.layer}" if spec.layer else f"{namespace}/{own}/"


def control_of(spec: ExperimentSpec) -> str:
    """The name of the arm with which the others are compared."""
    return spec.control or spec.arms[0].name


def refusal(spec: ExperimentSpec) -> str:
    """What is wrong with a spec that no API server has checked, with its field; empty: nothing."""
    return _arms_refusal(spec) or _unit_refusal(spec.unit) or _range_refusal(spec)


def _arms_refusal(spec: ExperimentSpec) -> str:
    names = [arm.name for arm in spec.arms]
    if (total := sum(arm.weight for arm in spec.arms)) != 100:
        return f"arms: the weights are {total} together: write weights that are 100 together"
    if len(set(names)) < len(names):
        return "arms: two have the same name"
    if HOLDOUT in names:
        return f"arms: {HOLDOUT} is the name of the units that are held out: write another one"
    for number, arm in enumerate(spec.arms):
        if arm.deployment_ref is None and arm.revision is None:
            return f"arms[{number}]: an arm is a ModelDeployment or a revision: write deploymentRef, revision or both"
    return "" if control_of(spec) in names else "control: it is none of the arms: write the name of one"


def _unit_refusal(unit: ExperimentUnit) -> str:
    if (unit.header is not None) != (unit.type == HEADER):
        return "unit.header: it is the name of a request header, for the type Header alone: write both or neither"
    if unit.header is not None and unit.header.lower() in CREDENTIALS:
        return "unit.header: a credential is no unit: write the type APIKey or Tenant"
    return ""


def _range_refusal(spec: ExperimentSpec) -> str:
    if spec.allocation.start >= spec.allocation.end:
        return "allocation: it is a range of percent: write a start below the end"
    if spec.start_time and spec.end_time and spec.start_time >= spec.end_time:
        return "startTime: it must be before endTime"
    return ""
