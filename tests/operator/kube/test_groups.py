"""Groups as they are read: by their LeaderWorkerSet, its StatefulSet, and the pods of both."""

from typing import Any

import pytest

from slipway_operator.kube.errors import NotFound, Refused, Unavailable
from slipway_operator.kube.reading import groups
from slipway_operator.kube.resources import LEADER_WORKER_SETS, STATEFUL_SETS
from slipway_operator.model.cluster.observed import Workload
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.planning.facts import causes

SET = {
    "metadata": {
        "name": "chat-r1",
        "namespace": "team",
        "uid": "set",
        "labels": {"slipway.dev/modeldeployment": "chat", "slipway.dev/revision": "r1"},
    },
    "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2}},
}
NODES = {"chat-r1-0": "a", "chat-r1-0-1": "b", "chat-r1-1": "c", "chat-r1-1-1": "d"}


def pod(name: str, *, ready: bool = True, restarts: int = 0, uid: str = "leaders", deleted: bool = False) -> Any:
    """A leader chat-r1-G, or a worker chat-r1-G-W."""
    parts = name.removeprefix("chat-r1-").split("-")
    leader = {"kind": "StatefulSet", "name": "chat-r1", "uid": uid, "controller": True}
    worker = {"kind": "StatefulSet", "name": f"chat-r1-{parts[0]}", "uid": "workers", "controller": True}
    ended = {"terminated": {"exitCode": 1, "message": "NCCL: no route"}}
    container = {"name": "server", "restartCount": restarts, "lastState": ended if restarts else {}, "ready": ready}
    metadata = {
        "name": name,
        "uid": name,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"leaderworkerset.sigs.k8s.io/group-index": parts[0]},
        "ownerReferences": [leader if len(parts) == 1 else worker],
        **({"deletionTimestamp": "2026-01-01T00:10:00Z"} if deleted else {}),
    }
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {
        "metadata": metadata,
        "spec": {"nodeName": NODES.get(name, "x")},
        "status": {"conditions": conditions, "containerStatuses": [container], "podIP": "10.0.0.1"},
    }


def seen(*pods: Any, leaving: tuple[str, ...] = ()) -> Workload:
    return groups.workload(SET, "leaders", list(pods), leaving)


def two_groups(**changes: Any) -> list[Any]:
    names = ("chat-r1-0", "chat-r1-0-1", "chat-r1-1", "chat-r1-1-1")
    return [pod(name, **changes.get(name.replace("-", "_"), {})) for name in names]


def test_groups_are_counted_and_not_pods() -> None:
    found = seen(*two_groups())
    assert (found.kind, found.name, found.uid) == ("LeaderWorkerSet", "chat-r1", "leaders")
    assert (found.desired, found.replicas, found.ready) == (2, 2, 2)
    assert [item.name for item in found.pods] == ["chat-r1-0", "chat-r1-1"], "leaders"
    assert [(item.name, item.group) for item in found.workers] == [("chat-r1-0-1", "0"), ("chat-r1-1-1", "1")]
    assert len(found.scheduled) == 4, "each pod costs its node"


@pytest.mark.parametrize("name", ["chat_r1_0", "chat_r1_0_1"])
def test_a_group_is_ready_when_its_leader_and_all_its_workers_are(name: str) -> None:
    found = seen(*two_groups(**{name: {"ready": False}}))
    assert found.ready == 1
    assert [item.ready for item in found.pods] == [False, True]
    assert seen(pod("chat-r1-0")).ready == 0, "its worker is missing"


def test_a_group_of_which_a_pod_terminates_still_uses_nodes() -> None:
    gone = seen(pod("chat-r1-0-1", deleted=True))
    assert (gone.replicas, gone.ready, gone.pods, gone.workers) == (1, 0, (), ())


def test_a_group_leaves_with_any_of_its_nodes_and_restarts_with_any_of_its_pods() -> None:
    found = seen(*two_groups(chat_r1_1_1={"restarts": 2}), leaving=("b",))
    assert [item.leaving for item in found.pods] == [True, False]
    assert [item.restarts for item in found.pods] == [0, 2]


def test_pods_that_only_look_like_those_of_the_set_do_not_count() -> None:
    forged = pod("chat-r1-7", uid="forged")
    stray = pod("chat-r1-8-1")
    stray["metadata"]["ownerReferences"] = []
    assert seen(forged, stray) == seen()
    assert groups.workload(SET, "", two_groups()).pods == (), "without a StatefulSet there is no leader"


def test_the_end_of_a_container_is_read_while_its_group_is_deleted_for_it() -> None:
    found = seen(*two_groups(chat_r1_0={"restarts": 1, "ready": False, "deleted": True}))
    assert [(item.pod, item.message) for item in found.troubles] == [
        ("chat-r1-0", "container server: NCCL: no route (exit code 1)")
    ]
    assert seen(*two_groups(chat_r1_0={"deleted": True})).troubles == (), "it ends as it should"


def test_what_cannot_be_created_is_looked_for_in_the_events_of_its_maker() -> None:
    """The conditions of a LeaderWorkerSet do not say it, nor those of its StatefulSets."""
    assert groups.missing([(SET, "leaders")], two_groups()) == {}
    workers = "involvedObject.kind=StatefulSet,involvedObject.name=chat-r1-0"
    cases = {
        ("leaders",): ["involvedObject.uid=leaders"],
        ("",): ["involvedObject.uid=set"],
        ("leaders", "chat-r1-0"): ["involvedObject.uid=leaders", workers],
        ("leaders", "chat-r1-0", "chat-r1-1"): [workers],
    }
    for (uid, *names), selectors in cases.items():
        assert groups.missing([(SET, uid)], [pod(name) for name in names]) == {"set": selectors}
    asleep = {**SET, "spec": {**SET["spec"], "replicas": 0}}
    assert groups.missing([(asleep, "leaders")], []) == {}


def test_why_pods_are_not_created_is_a_trouble_as_long_as_they_are_missing() -> None:
    failures = {"set": ("FailedCreate", "create Pod chat-r1-0 failed: exceeded quota: gpus", None)}
    found = groups.workload(SET, "leaders", [], (), failures)
    [trouble] = found.troubles
    assert (trouble.pod, trouble.reason, found.creating) == ("chat-r1", "FailedCreate", 4)
    cause = causes.of_workload(found, Resources())
    assert cause and cause.reason == "QuotaExceeded" and cause.message.startswith("LeaderWorkerSet chat-r1: ")
    assert groups.workload(SET, "leaders", two_groups(), (), failures).troubles == ()


class Cluster:
    """A client with fixed answers."""

    def __init__(self, listed: Any, stateful_set: Any = None) -> None:
        self.listed, self.stateful_set = listed, stateful_set

    async def list(self, resource: Any, namespace: str, selector: str) -> Any:
        assert (resource, namespace, selector) == (LEADER_WORKER_SETS, "team", "slipway.dev/modeldeployment=chat")
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed

    async def get(self, resource: Any, namespace: str, name: str) -> Any:
        assert (resource, namespace, name) == (STATEFUL_SETS, "team", "chat-r1")
        if self.stateful_set is None:
            raise NotFound("no such thing")
        return self.stateful_set


def stateful_set(owner_uid: str) -> Any:
    return {"metadata": {"uid": "leaders", "ownerReferences": [{"uid": owner_uid, "controller": True}]}}


@pytest.mark.parametrize(
    ("found", "uid"), [(stateful_set("set"), "leaders"), (stateful_set("another"), ""), (None, "")]
)
async def test_leaders_are_those_of_the_stateful_set_that_the_set_controls(found: Any, uid: str) -> None:
    seen_sets = await groups.read(Cluster([SET], found), "team", "chat")  # type: ignore[arg-type]
    assert seen_sets.items == ((SET, uid),)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFound("the server could not find it"), "LeaderWorkerSetNotInstalled"),
        (Refused(403, "forbidden"), "LeaderWorkerSetForbidden"),
    ],
)
async def test_a_missing_kind_is_a_reason(error: Exception, reason: str) -> None:
    assert (await groups.read(Cluster(error), "team", "chat")).problem == reason  # type: ignore[arg-type]


async def test_an_api_server_that_is_away_is_no_missing_kind() -> None:
    with pytest.raises(Unavailable):
        await groups.read(Cluster(Unavailable("away")), "team", "chat")  # type: ignore[arg-type]
