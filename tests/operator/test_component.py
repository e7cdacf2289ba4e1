"""What plugs into the operator has its say in each reconcile, in the order of the list, and its tasks run."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from slipway_operator.api.objects import ObjectKey
from slipway_operator.component import Component, NotYet, ReconciledDeployment, close_all, start_tasks
from slipway_operator.kube.errors import NotFound, Unavailable
from slipway_operator.kube.writing.apply import CannotCreate
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.reconcile import WAITS_AGAIN_S, WAITS_REPORTED_S
from slipway_process.supervisor import OnFailure, Supervisor
from tests.support.reconciling import reconciler_of

from .test_reconcile import KEY, NOW, FailingClient, chat


class Recorded(Component):
    """Records its calls, and the call of the API server before each."""

    def __init__(self, name: str, calls: list[str], client: FailingClient, **failures: Exception) -> None:
        self.name, self.calls, self.client, self.failures = name, calls, client, failures

    def _called(self, method: str) -> None:
        self.calls.append(f"{method} {self.name} after {self.client.calls[-1]}")
        if method in self.failures:
            raise self.failures[method]

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        self._called("observe")
        assert deployment.key == KEY and deployment.spec.inputs.model.uri == "file:///m"  # type: ignore[union-attr]
        return replace(observed, certificate=f"{observed.certificate or ''}{self.name}")

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        self._called("before")

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> float | None:
        assert observed.certificate == "ab", "each one sees what those before it added"
        self._called("after")
        return 2.5 if self.name == "a" else None

    def forget(self, key: ObjectKey) -> None:
        self._called("forget")

    def leave(self, key: ObjectKey) -> None:
        self._called("leave")


def recorded(client: FailingClient, **failures: Exception) -> tuple[list[Recorded], list[str]]:
    calls: list[str] = []
    return [Recorded("a", calls, client, **failures), Recorded("b", calls, client)], calls


async def reconcile(client: FailingClient, components: list[Recorded]) -> float | None:
    return await reconciler_of(client, lambda: NOW, components)(KEY, 0)  # type: ignore[arg-type]


async def test_each_component_has_its_say_in_the_order_of_the_list() -> None:
    client = FailingClient(chat())
    components, calls = recorded(client)
    again_after_s = await reconcile(client, components)
    assert [line.rsplit(" after ", 1)[0] for line in calls] == [
        *("observe a", "observe b", "before a", "before b", "after a", "after b")
    ]
    assert calls[2] == "before a after list", "nothing was written before"
    assert calls[4] == "after a after create", "the status is written, and its Event"
    assert again_after_s is not None and again_after_s <= 2.5


@pytest.mark.parametrize(
    ("obj", "method"),
    [(None, "forget"), (chat(deletionTimestamp="2026-01-01T00:00:00Z"), "leave")],
    ids=["gone", "left"],
)
async def test_what_is_gone_or_deleted_is_dropped(obj: Any, method: str) -> None:
    client = FailingClient(obj) if obj else FailingClient(get=NotFound("no"))
    components, calls = recorded(client)
    assert await reconcile(client, components) is None
    assert calls == [f"{method} a after get", f"{method} b after get"]


async def test_a_component_that_cannot_observe_yet_is_waited_for() -> None:
    client = FailingClient(chat())
    components, _ = recorded(client, observe=NotYet(0.7, "it is not read"))
    assert await reconcile(client, components) == 0.7
    assert {"apply", "put_status", "create"}.isdisjoint(client.calls)


async def test_a_component_that_cannot_observe_for_long_gets_an_event_and_fewer_tries() -> None:
    client, moment = FailingClient(chat()), [NOW]
    components, _ = recorded(client, observe=NotYet(0.7, "it is not read"))
    run = reconciler_of(client, lambda: moment[0], components)  # type: ignore[arg-type]
    assert await run(KEY, 0) == 0.7
    moment[0] += timedelta(seconds=WAITS_REPORTED_S - 1)
    assert await run(KEY, 0) == 0.7 and "create" not in client.calls
    moment[0] += timedelta(seconds=1)
    assert await run(KEY, 0) == WAITS_AGAIN_S and client.calls[-1] == "create"
    assert {"apply", "put_status"}.isdisjoint(client.calls)
    # Once it has observed, the next wait is a new one.
    components[0].failures.clear()
    await run(KEY, 0)
    components[0].failures["observe"] = NotYet(0.7, "it is not read")
    assert await run(KEY, 0) == 0.7


async def test_what_a_component_cannot_write_keeps_the_plan_from_being_executed() -> None:
    client = FailingClient(chat())
    components, calls = recorded(client, before=Unavailable("away"))
    with pytest.raises(CannotCreate, match="what pods need cannot be written: away"):
        await reconcile(client, components)
    assert calls[-1] == "before a after list"
    assert {"apply", "put_status", "create"}.isdisjoint(client.calls)


async def test_a_bug_in_what_follows_the_status_stops_no_other_component(caplog: pytest.LogCaptureFixture) -> None:
    client = FailingClient(chat())
    components, calls = recorded(client, after=KeyError("a bug"))
    again_after_s = await reconcile(client, components)
    assert calls[-1] == "after b after create" and again_after_s is not None
    assert "the component Recorded raised" in caplog.text


@pytest.mark.parametrize("method", ["forget", "leave"])
async def test_a_bug_in_forgetting_leaves_nothing_behind_elsewhere(method: str) -> None:
    gone = FailingClient(get=NotFound("no"))
    client = gone if method == "forget" else FailingClient(chat(deletionTimestamp="2026-01-01T00:00:00Z"))
    components, calls = recorded(client, **{method: KeyError("a bug")})
    assert await reconcile(client, components) is None
    assert calls[-1] == f"{method} b after get"


class Unclosable(Component):
    async def close(self) -> None:
        raise RuntimeError("it hangs on")


class Closing(Component):
    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_component_that_does_not_close_keeps_no_other_one_open(caplog: pytest.LogCaptureFixture) -> None:
    other = Closing()
    await close_all((Unclosable(), other))
    assert other.closed and "the component Unclosable did not close" in caplog.text


class Working(Component):
    task, on_failure = "work", OnFailure.SHOW

    async def run(self) -> None:
        raise RuntimeError("it ends")


async def test_the_tasks_of_components_are_supervised() -> None:
    tasks = Supervisor(lambda name: None)
    try:
        start_tasks((Component(), Working()), tasks)
        assert tasks.tasks == {"work": OnFailure.SHOW}
    finally:
        await tasks.close()
