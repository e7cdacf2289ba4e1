"""Two operators: one writes, the other stands by. What ends the first one in the middle of a canary loses nothing."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from bench.chaos.killer import Node
from testkit.cluster.deployment import Deployment, Json, canary, state_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import RELEASE, SYSTEM
from testkit.cluster.release import is_devcluster
from testkit.load.closed import Load
from testkit.report import Bar, report, write
from testkit.until import until

pytestmark = pytest.mark.extended

LEASE_S = 10  # of the suite's values
# Beyond what docs/operator.md states: kubectl's own call, and a machine on which other things run.
SLACK_S = 3.0


@pytest.fixture
def two_operators(slipway: Installation) -> Iterator[None]:
    if not is_devcluster(slipway.kube):
        pytest.skip("nodes of a foreign cluster are out of reach, and the API has no SIGKILL")
    try:
        upgrade(slipway)
        yield
    finally:
        slipway.upgrade()
        slipway.until_well()


def upgrade(slipway: Installation, **fields: Json) -> None:
    slipway.upgrade(operator={"replicaCount": 2, **fields})
    until(lambda: len(slipway.ready("operator")), "two operators are ready", 120, holds=lambda count: count == 2)


def holder(slipway: Installation) -> str:
    """The pod whose operator writes."""
    lease = slipway.kube.api.find(f"apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{RELEASE}-operator")
    return str(lease["spec"].get("holderIdentity") or "")


def kill(slipway: Installation, pod: str) -> None:
    """As with the loss of its node: SIGKILL, and no container that starts again in the pod and has its lease."""
    [status] = slipway.kube.api.find(f"api/v1/namespaces/{SYSTEM}/pods/{pod}")["status"]["containerStatuses"]
    Node.of_devcluster().kill(status["containerID"].partition("://")[2])
    slipway.kill(pod)


def next_write_s(slipway: Installation, chat: Deployment, end: Callable[[str], None]) -> float:
    """Seconds from the end of the operator that writes to a status of the other one that knows a later edit."""
    former = until(
        lambda: holder(slipway), "an operator writes", 60, holds=lambda pod: pod in slipway.ready("operator")
    )
    began_s = time.monotonic()
    end(former)
    chat.edit(revisionHistoryLimit=chat.status["observedGeneration"] % 5 + 3)
    generation = slipway.kube.deployment(chat.name, chat.namespace)["metadata"]["generation"]
    until(lambda: chat.status["observedGeneration"], "the other one writes", 60, holds=lambda seen: seen == generation)
    took_s = time.monotonic() - began_s
    assert holder(slipway) not in ("", former)
    until(lambda: len(slipway.ready("operator")), "there are two again", 120, holds=lambda count: count == 2)
    return took_s


def events_of(slipway: Installation, chat: Deployment) -> Counter[str]:
    """Events about the rollout by what they say, each as often as it was posted."""
    found: Counter[str] = Counter()
    for event in slipway.kube.api.items("v1/events", chat.namespace):
        if event["involvedObject"]["kind"] == "ModelDeployment":
            found[f"{event['reason']}: {event['message']}"] += event.get("count") or 1
    return found


@pytest.mark.timeout(600, func_only=True)
def test_an_upgrade_and_the_end_of_the_writer_in_a_canary_lose_no_event_and_no_request(
    slipway: Installation, deploy: Callable[..., Deployment], two_operators: None, load: Callable[[Deployment], Load]
) -> None:
    chat = deploy("v1", strategy=canary({"setWeight": 50}, {"pause": {}}, {"setWeight": 80}, {"pause": {}}))
    chat.until_stable("v1")
    steady = load(chat)
    chat.release("v2")
    paused = chat.until_state("Paused")
    operators = set(slipway.ready("operator"))
    upgrade(slipway, podAnnotations={"example.com/upgraded": "yes"})
    until(lambda: operators & set(slipway.ready("operator")), "both are new", 120, holds=lambda left: not left)
    assert chat.status["rollout"]["token"] == paused["rollout"]["token"], "it waits for the same answer"
    chat.promote()
    chat.until("it waits again", lambda status: status.get("weight") == 80 and state_of(status) == "Paused", 60)

    dismissed_s = next_write_s(slipway, chat, slipway.dismiss)
    killed_s = next_write_s(slipway, chat, lambda pod: kill(slipway, pod))
    chat.promote()
    done = chat.until_stable("v2")
    assert "canaryRevision" not in done
    assert steady.stop().failures == ()

    events = events_of(slipway, chat)
    reasons = Counter(text.partition(":")[0] for text in events)
    assert (reasons["RolloutPaused"], reasons["RolloutResumed"]) == (2, 2), events
    assert reasons["RolloutCompleted"] and reasons["RolloutStepCompleted"], events
    assert max(events.values()) == 1, events
    bars = [
        Bar(f"seconds from {end} to the next write", round(took_s, 1), f"<= {limit_s}", took_s <= limit_s)
        for end, took_s, limit_s in (
            ("SIGTERM", dismissed_s, 2 + SLACK_S),
            ("a kill", killed_s, LEASE_S + 2 + SLACK_S),
        )
    ]
    write(report("standby", [], bars, lease_s=LEASE_S, slack_s=SLACK_S))
    assert all(bar.ok for bar in bars), bars
