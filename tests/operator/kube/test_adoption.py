"""Which objects count as orphans of a ModelDeployment."""

from typing import Any

import pytest

from slipway_operator.kube.writing.adoption import is_orphan
from slipway_operator.model import labels

pytestmark = pytest.mark.finding("L1")

REVISION = "abcdefgh22"
OTHER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "other", "uid": "u9", "controller": True}


def child(name: str = f"chat-{REVISION}", revision: str = REVISION, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels.child_labels("chat", revision)} | metadata}


@pytest.mark.parametrize(
    "item",
    [
        child(),
        child("chat-abcdefgh-3"),
        child(f"chat-{REVISION}-baseline", f"{REVISION}-baseline"),
        child(ownerReferences=[OTHER | {"controller": False}]),
    ],
)
def test_orphans(item: dict[str, Any]) -> None:
    assert is_orphan(item, "chat")


@pytest.mark.parametrize(
    "item",
    [
        child(ownerReferences=[OTHER]),
        child(deletionTimestamp="2026-11-21T12:00:00Z"),
        child("alien"),
        child("chat-abcdefgh-99999"),
        child("chat-abcdefgh-0"),
        child(labels={}),
        child(labels=labels.child_labels("chat", REVISION) | {labels.MANAGED_BY: "helm"}),
        child(labels=labels.child_labels("another", REVISION)),
        child(labels={labels.MODEL_DEPLOYMENT: "chat", labels.MANAGED_BY: "slipway"}),
    ],
)
def test_no_orphans(item: dict[str, Any]) -> None:
    assert not is_orphan(item, "chat")
