"""What a row of the rollout's table is, and the sets of states that rows name."""

from collections.abc import Callable
from dataclasses import dataclass

from slipway_operator.api.v1alpha1.status import State
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing.sizes import Sizes

IDLE = frozenset({None})
FIRST = frozenset({State.INITIALIZING})
PROVISIONING = frozenset({State.PROVISIONING})
WAITING = frozenset({State.CAPACITY_WAIT})
SHIFTING = frozenset({State.SHIFTING})
PAUSED = frozenset({State.PAUSED})
ANALYZING = frozenset({State.ANALYZING})
PROMOTING = frozenset({State.PROMOTING})
ABORTING = frozenset({State.ABORTING})
ABORTED = frozenset({State.ABORTED})
STEPPING = PROVISIONING | WAITING | SHIFTING | PAUSED | ANALYZING
COMING_UP = PROVISIONING | PROMOTING
IN_FLIGHT = STEPPING | PROMOTING

Outcome = tuple[Course, tuple[Event, ...]]
Decide = Callable[[Course, Situation, Sizes], Outcome | None]


@dataclass(frozen=True, slots=True)
class Row:
    """In one of `states`, `decide` returns the next course and its Events, or None where the row does not apply.

    `name` and `description` are for tests, the status and the docs.
    """

    name: str
    description: str
    states: frozenset[State | None]
    decide: Decide


def row(name: str, description: str, states: frozenset[State] | frozenset[None]) -> Callable[[Decide], Row]:
    """A decorator that makes a function a row of the table."""
    return lambda decide: Row(name, description, frozenset(states), decide)
