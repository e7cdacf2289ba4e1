"""The PodDisruptionBudget of model pods: its number, and when it is applied."""

from typing import Any

import pytest

from slipway_operator.kube.errors import Refused, Stale, Unavailable
from slipway_operator.kube.resources import DISRUPTION_BUDGETS
from slipway_operator.kube.writing.disruption_budgets import AGAIN_AFTER_S, DisruptionBudgets
from slipway_operator.manifests.disruption_budget import disruption_budget
from slipway_operator.manifests.owner import Owner

CHAT = {"metadata": {"name": "chat", "namespace": "default", "uid": "u1"}}


class Server:
    """Accepts what is applied, or raises `failure`."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    async def apply(self, resource: Any, manifest: dict[str, Any], *, force: bool) -> None:
        assert resource == DISRUPTION_BUDGETS and not force
        self.applied.append(manifest)
        if self.failure:
            raise self.failure

    @property
    def numbers(self) -> list[int]:
        return [item["spec"]["minAvailable"] for item in self.applied]


def test_pods_of_all_revisions_count_and_those_that_are_not_ready_may_go() -> None:
    spec = disruption_budget(Owner.of(CHAT), 2)["spec"]
    assert spec["selector"] == {"matchLabels": {"slipway.dev/modeldeployment": "chat"}}
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


async def test_budget_follows_the_number_at_once_and_is_applied_periodically() -> None:
    server, now = Server(), [0.0]
    budgets = DisruptionBudgets(server, lambda: now[0])  # type: ignore[arg-type]
    for pods in (0, 0, 2, 2, 1):
        await budgets.keep(CHAT, pods)
    assert server.numbers == [0, 2, 1]
    now[0] += AGAIN_AFTER_S
    await budgets.keep(CHAT, 1)
    await budgets.keep({"metadata": {**CHAT["metadata"], "uid": "u2"}}, 1)
    budgets.forget(("default", "chat"))
    await budgets.keep(CHAT, 1)
    assert server.numbers == [0, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("failure", [Refused(403, "poddisruptionbudgets is forbidden"), Stale("kubectl-edit has it")])
async def test_without_the_permission_or_beside_another_writer_the_model_is_served_and_a_log_line_names_it(
    caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    server = Server()
    server.failure = failure
    await DisruptionBudgets(server).keep(CHAT, 1)  # type: ignore[arg-type]
    assert f"of the model pods of default/chat is not applied: {failure}" in caplog.text
    server.failure = Unavailable("away")
    with pytest.raises(Unavailable):
        await DisruptionBudgets(server).keep(CHAT, 1)  # type: ignore[arg-type]
