"""Evictions, as `kubectl drain` makes them: one pod after the other, and no request fails."""

from collections.abc import Callable

from testkit.cluster.deployment import START_S, Deployment
from testkit.cluster.installation import Installation
from testkit.load.closed import Load
from testkit.until import until


def test_pods_are_evicted_one_after_the_other_without_a_failed_request(
    slipway: Installation, deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    chat = deploy("v1", replicas=2)
    chat.until_stable("v1")
    chat.until("two pods are ready", lambda status: status["ready"] == "2/2", START_S)
    until(lambda: budget(slipway, chat), "the budget lets one pod go", 30, holds=lambda allowed: allowed == 1)
    steady = load(chat)
    first, second = (pod["metadata"]["name"] for pod in chat.pods())

    assert evict(slipway, chat, first) == 201
    assert evict(slipway, chat, second) == 429, "the only pod that serves was evicted"
    chat.until("a new pod has taken its place", lambda status: status["ready"] == "2/2", START_S)
    until(lambda: evict(slipway, chat, second), "the other pod may go now", 60, holds=lambda status: status == 201)
    chat.until("two new pods serve", lambda status: status["ready"] == "2/2", START_S)
    until(lambda: {pod["metadata"]["name"] for pod in chat.pods()} & {first, second}, "both are gone", 60, holds=negate)
    assert steady.stop().failures == ()


def negate(value: object) -> bool:
    return not value


def budget(slipway: Installation, chat: Deployment) -> int:
    """How many pods may be evicted now."""
    found = slipway.kube.api.find(f"apis/policy/v1/namespaces/{chat.namespace}/poddisruptionbudgets/chat-pdb")
    return int((found.get("status") or {}).get("disruptionsAllowed", -1))


def evict(slipway: Installation, chat: Deployment, pod: str) -> int:
    """The status of an eviction: 201, or 429 when the budget does not allow it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": chat.namespace}}
    return slipway.kube.api.post(f"api/v1/namespaces/{chat.namespace}/pods/{pod}/eviction", body).status
