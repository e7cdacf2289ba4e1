"""Who scales a ModelDeployment, read from the objects of a namespace; listed once for many reconciles."""

import asyncio
from typing import Any

import pytest

from slipway_operator.kube.errors import Refused, Unavailable
from slipway_operator.kube.reading.autoscalers import CACHE_S, Autoscalers

CREATED = "2026-01-01T00:00:00Z"


def hpa(
    name: str, target: str = "chat", *, kind: str = "ModelDeployment", owner: str = "", **metadata: Any
) -> dict[str, Any]:
    group = "slipway.dev/v1alpha1" if kind == "ModelDeployment" else "apps/v1"
    owners = {"ownerReferences": [{"uid": owner, "controller": True}]} if owner else {}
    return {
        "metadata": {"name": name, "creationTimestamp": CREATED, **owners, **metadata},
        "spec": {"scaleTargetRef": {"apiVersion": group, "kind": kind, "name": target}},
    }


class Namespace:
    """A client with fixed objects, which counts its list calls."""

    def __init__(self, *items: dict[str, Any], failure: Exception | None = None) -> None:
        self.items, self.failure, self.lists = list(items), failure, 0

    async def pages(self, resource: Any, namespace: str, *, cached: bool) -> Any:
        assert (resource.plural, namespace, cached) == ("horizontalpodautoscalers", "default", True)
        self.lists += 1
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure
        yield {"items": self.items[:1]}
        yield {"items": self.items[1:]}


def of(name: str = "chat") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "uid": "u1"}}


async def found(*items: dict[str, Any], name: str = "chat") -> Any:
    return await Autoscalers(Namespace(*items)).of(of(name))  # type: ignore[arg-type]


async def test_ours_theirs_and_those_of_keda_are_distinguished() -> None:
    keda = hpa("keda-hpa-x", labels={"scaledobject.keda.sh/name": "x"})
    seen = await found(hpa("chat-autoscaler", owner="u1"), hpa("theirs"), keda)
    assert [(item.name, item.ours, item.scaled_object) for item in seen] == [
        ("chat-autoscaler", True, ""),
        ("theirs", False, ""),
        ("keda-hpa-x", False, "x"),
    ]


async def test_an_orphan_is_one_of_our_name_and_labels_without_a_controller() -> None:
    marked = {"labels": {"slipway.dev/modeldeployment": "chat", "app.kubernetes.io/managed-by": "slipway"}}
    for item, expected in (
        (hpa("chat-autoscaler", **marked), True),
        (hpa("chat-autoscaler"), False),
        (hpa("chat-autoscaler", owner="u9", **marked), False),
        (hpa("mine", **marked), False),
    ):
        (seen,) = await found(item)
        assert (seen.ours, seen.orphan) == (False, expected)


async def test_other_targets_are_none_of_ours_but_for_the_name() -> None:
    assert not await found(hpa("a", "code"), hpa("b", kind="Deployment"))
    (taken,) = await found(hpa("chat-autoscaler", "web", kind="Deployment"))
    assert (taken.ours, taken.aims_here) == (False, False)


async def test_one_of_a_former_namesake_or_one_that_leaves_does_not_count_as_ours() -> None:
    (former,) = await found(hpa("chat-autoscaler", owner="u0"))
    assert not former.ours
    assert not await found(hpa("chat-autoscaler", owner="u1", deletionTimestamp=CREATED))


async def test_conditions_of_the_controller_are_read() -> None:
    item = hpa("theirs")
    item["status"] = {"conditions": [{"type": "ScalingActive", "status": "False", "reason": "R", "message": "m"}]}
    (seen,) = await found(item)
    assert [(one.type, one.status, one.reason, one.message) for one in seen.conditions] == [
        ("ScalingActive", "False", "R", "m")
    ]


async def test_reconciles_share_one_list_until_a_change() -> None:
    now = 0.0
    client = Namespace(hpa("theirs"))
    autoscalers = Autoscalers(client, lambda: now)  # type: ignore[arg-type]
    await asyncio.gather(*(autoscalers.of(of(name)) for name in ("chat", "code", "chat")))
    assert client.lists == 1
    autoscalers.forget("default")
    await autoscalers.of(of())
    assert client.lists == 2
    now = CACHE_S
    await autoscalers.of(of())
    assert client.lists == 3


async def test_change_during_a_list_expires_its_result() -> None:
    client = Namespace(hpa("theirs"))
    autoscalers = Autoscalers(client, lambda: 0.0)  # type: ignore[arg-type]
    asking = asyncio.create_task(autoscalers.of(of()))
    await asyncio.sleep(0)
    autoscalers.forget("default")
    await asking
    await autoscalers.of(of())
    assert client.lists == 2


async def test_forbidden_list_is_empty_and_a_failed_list_is_reported() -> None:
    assert not await Autoscalers(Namespace(failure=Refused(403, "forbidden"))).of(of())  # type: ignore[arg-type]
    client = Namespace(failure=Unavailable("away"))
    autoscalers = Autoscalers(client, lambda: 0.0)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(Unavailable):
            await autoscalers.of(of())
    assert client.lists == 2, "a failure is not kept"
