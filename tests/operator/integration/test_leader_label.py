"""The label of the pod whose operator holds the lease, against a real API server."""

import pytest

from slipway_operator.kube.errors import Fenced
from slipway_operator.kube.resources import PODS
from slipway_operator.kube.writing.leader_label import LeaderLabel
from slipway_operator.model import labels

pytestmark = pytest.mark.integration

RELEASE = {labels.NAME: "slipway", labels.INSTANCE: "slipway", labels.COMPONENT: "operator"}
MARK = {labels.LEADER: labels.IS_LEADER}


@pytest.fixture
async def pods(client, namespace):
    """Two operators of one release, the second with a stale label; an operator of another release; a stranger."""
    kinds = {
        "new": RELEASE,
        "old": RELEASE | MARK,
        "other": RELEASE | MARK | {labels.INSTANCE: "another"},
        "gateway": RELEASE | MARK | {labels.COMPONENT: "gateway"},
    }
    for name, marks in kinds.items():
        spec = {"containers": [{"name": "a", "image": "a:1"}]}
        await client.create(PODS, {"metadata": {"name": name, "namespace": namespace, "labels": marks}, "spec": spec})


async def leaders(client, namespace):
    found = await client.list(PODS, namespace, f"{labels.LEADER}={labels.IS_LEADER}")
    return {pod["metadata"]["name"] for pod in found}


async def test_the_holder_has_the_label_and_takes_it_from_its_predecessor_alone(client, namespace, pods):
    label = LeaderLabel(client, namespace, "new", lambda: True)
    await label.look()
    assert await leaders(client, namespace) == {"new", "other", "gateway"}
    await label.look()
    await label.close()
    assert await leaders(client, namespace) == {"other", "gateway"}


async def test_without_the_lease_no_pod_is_touched(client, namespace, pods):
    label = LeaderLabel(client, namespace, "new", lambda: False)
    await label.close()
    assert await leaders(client, namespace) == {"old", "other", "gateway"}


async def test_what_is_fenced_is_another_operators_work(client, namespace, pods, monkeypatch):
    async def fenced(*_):
        raise Fenced("not sent")

    monkeypatch.setattr(client, "patch", fenced)
    label = LeaderLabel(client, namespace, "new", lambda: True)
    await label._try()
    assert not label._is_set and not label._trouble
