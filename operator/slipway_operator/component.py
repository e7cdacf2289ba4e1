"""What plugs into the operator: each component has a say in the reconciles of all ModelDeployments, a task, or both."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypeVar

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment.spec import Invalid, Spec
from slipway_process.supervisor import OnFailure, Supervisor

log = logging.getLogger(__name__)

Result = TypeVar("Result")

BUSY_PAUSE_S = 5.0  # until the next reconcile, where calls wait for their turn


@dataclass(frozen=True, slots=True)
class ReconciledDeployment:
    """A ModelDeployment in one pass of the reconciler: the object as it was read, and its spec, parsed once."""

    key: ObjectKey
    obj: Object
    spec: Spec | Invalid


class NotYet(Exception):
    """A component cannot observe yet: the reconcile is repeated after so many seconds.

    `what`: what it waits for, in words for the user, who gets an Event when it does not come.
    """

    def __init__(self, after_s: float, what: str) -> None:
        super().__init__(f"{what}; again after {after_s:g} s")
        self.after_s, self.what = after_s, what


class Component:
    """A part of the operator. `assembly.py` lists all of them, in the order in which they have their say.

    What a reconcile needs fails with it: `observe` and `before`. Of all other methods an exception is logged, and the
    other components go on. `task`: by which name `run` is supervised; empty where the component has no task.
    """

    task: ClassVar[str] = ""
    on_failure: ClassVar[OnFailure] = OnFailure.UNREADY

    async def run(self) -> None:
        """Do what the component does by itself, until cancelled."""
        raise NotImplementedError(f"{type(self).__name__} names a task and has none")

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with what this component knows. Raises NotYet."""
        return observed

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Write what has to be there before the plan is executed. Raises ApiError: none of its children is made."""

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> float | None:
        """Act on a plan whose status was written; returns within how many seconds to reconcile again, None: whenever.

        The status has a call before it is made, and a response before it is dropped.
        """
        return None

    def forget(self, key: ObjectKey) -> None:
        """Drop what is known of a ModelDeployment that is gone. It may exist again at once, with another uid."""

    def reset(self) -> None:
        """Drop what is known by this process's own writes: another operator may write, or has written meanwhile.

        `forget` is called for each ModelDeployment besides.
        """

    def leave(self, key: ObjectKey) -> None:
        """Drop what a ModelDeployment that is being deleted waits for."""

    async def close(self) -> None:
        """End what runs, before the process ends."""


def start_tasks(components: tuple[Component, ...], tasks: Supervisor) -> None:
    """Start the tasks of all components that have one."""
    for component in components:
        if component.task:
            tasks.start(component.task, component.run, component.on_failure)


def each(components: Sequence[Component], call: Callable[[Component], Result]) -> Iterator[Result]:
    """Yield the results of a call of each component. One that raises is logged, and the others go on."""
    for component in components:
        try:
            yield call(component)
        except Exception:
            log.exception("a bug: the component %s raised", type(component).__name__)


async def close_all(components: Sequence[Component]) -> None:
    """Close all components. One that raises is logged, and the others are closed."""
    results = await asyncio.gather(*(component.close() for component in components), return_exceptions=True)
    for component, result in zip(components, results, strict=True):
        if isinstance(result, Exception):
            log.error("the component %s did not close", type(component).__name__, exc_info=result)
