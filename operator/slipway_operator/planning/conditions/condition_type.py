"""What a condition of a ModelDeployment is: its type, declared beside the function that decides on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slipway_contracts.route_table import Traffic
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.transitions import condition
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing.sizes import Sizes


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """What a condition may read. A revision's record is `at.observed.snapshots.get(what_runs(course.stable))`."""

    course: Course  # the spec and what the status says of the rollout
    at: Situation  # `observed`: the cluster
    sizes: Sizes
    traffic: Traffic | None
    obj: Json  # the ModelDeployment as the API server has it


@dataclass(frozen=True, slots=True)
class ConditionState:
    """What a condition says now: whether it holds (None: that is unknown), the reason and the message."""

    holds: bool | None
    reason: str
    message: str


AS_BEFORE = ConditionState(None, "", "")  # what it says is not known for a moment: the former condition stays

Decide = Callable[[ConditionFacts], ConditionState | None]
EventRule = Callable[[Condition | None, Condition | None], Event | None]  # of the former condition and the present one


@dataclass(frozen=True, slots=True)
class ConditionType:
    """`decide` returns what the condition says, or None where there is no such condition.

    While the spec is invalid, conditions `without_spec` follow what serves, and no change of a condition is an Event.
    """

    name: str
    decide: Decide
    rank: int | None  # place among the reasons in the column REASON, the lowest first; None: it never shows this one
    event: EventRule | None  # the Event about a change; None: its changes are no Events
    bad_when: Literal["True", "False", "Never"]  # Never: it sums up others, which report the problem
    starting: frozenset[str]  # reasons that only mean that something is in progress: REASON does not show them
    without_spec: bool  # decided while the spec is invalid too: it is about what serves. Others stay as they were

    def condition(self, facts: ConditionFacts, former: Condition | None) -> Condition | None:
        """The condition as it is now; None where there is none."""
        state = self.decide(facts)
        if state is AS_BEFORE:
            return former
        return condition(self.name, state.holds, state.reason, state.message, facts.at.now) if state else None

    def is_problem(self, shown: Condition) -> bool:
        """Whether a condition of this type is not in its normal state, or it is unknown whether it is."""
        return self.bad_when != "Never" and shown.status != ("True" if self.bad_when == "False" else "False")


def condition_type(
    name: str,
    *,
    rank: int | None,
    event: EventRule | None,
    bad_when: Literal["True", "False", "Never"] = "False",
    starting: frozenset[str] = frozenset(),
    without_spec: bool = False,
) -> Callable[[Decide], ConditionType]:
    """A decorator that makes a function the type of a condition. Its module lists it in TYPES."""
    return lambda decide: ConditionType(name, decide, rank, event, bad_when, starting, without_spec)
