"""LeaderWorkerSets and their pods: replicas of several pods, counted in groups.

They are read in each reconcile of a ModelDeployment that has or wants some, and not watched: a watch of a kind that may
be missing would end the operator, and whatever changes in a group changes one of its pods, which are watched.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound, Refused
from slipway_operator.kube.ownership import controller_of, is_controlled_by, is_leaving
from slipway_operator.kube.reading import pod_trouble
from slipway_operator.kube.reading.pod_trouble import NO_FAILURES, Found
from slipway_operator.kube.reading.pods import parse_pod
from slipway_operator.kube.resources import LEADER_WORKER_SETS, STATEFUL_SETS
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import FORBIDDEN, NOT_INSTALLED, Pod, PodTrouble, Workload

FORBIDDEN_STATUS = 403
MAX_TROUBLES = 8  # of one revision; a message shows the first


@dataclass(frozen=True, slots=True)
class GroupSets:
    """The LeaderWorkerSets of a ModelDeployment, with the uid of the StatefulSet of the leaders of each."""

    items: tuple[tuple[Object, str], ...] = ()
    problem: str = ""  # NOT_INSTALLED or FORBIDDEN when they cannot be read

    @property
    def objects(self) -> list[Object]:
        """The LeaderWorkerSets without the uids."""
        return [item for item, _ in self.items]


async def read(client: Client, namespace: str, name: str) -> GroupSets:
    """Read the LeaderWorkerSets with the label of a ModelDeployment, and the StatefulSets of their leaders."""
    try:
        found = await client.list(LEADER_WORKER_SETS, namespace, labels.selector(name))
    except NotFound:
        return GroupSets(problem=NOT_INSTALLED)
    except Refused as error:
        if error.status != FORBIDDEN_STATUS:
            raise
        return GroupSets(problem=FORBIDDEN)
    return GroupSets(tuple([(item, await _leaders_uid(client, item)) for item in found]))


async def _leaders_uid(client: Client, group_set: Object) -> str:
    """Return the uid of the StatefulSet that controls the leaders; empty while there is none.

    The StatefulSet is read. A pod's reference is no proof: any user of the namespace can create a pod that names any
    controller.
    """
    metadata = group_set["metadata"]
    try:
        found = await client.get(STATEFUL_SETS, metadata["namespace"], metadata["name"])
    except NotFound:
        return ""
    return str(found["metadata"]["uid"]) if is_controlled_by(found, metadata["uid"]) else ""


def missing(held: Iterable[tuple[Object, str]], pods: Sequence[Object]) -> dict[str, list[str]]:
    """Of LeaderWorkerSets that lack pods, by uid: field selectors of the objects whose Events say why.

    Leaders come of a StatefulSet, which LeaderWorkerSet makes; the workers of a group of another one, with the name of
    its leader.
    """
    found: dict[str, list[str]] = {}
    for group_set, leaders_uid in held:
        size, seen = (
            int(group_set["spec"]["leaderWorkerTemplate"].get("size", 1)),
            workload(group_set, leaders_uid, pods),
        )
        short = [lead.name for lead in seen.pods if sum(one.group == lead.group for one in seen.workers) < size - 1]
        selectors = [f"involvedObject.kind={STATEFUL_SETS.kind},involvedObject.name={name}" for name in short[:1]]
        if len(seen.pods) < seen.desired:
            selectors.insert(0, f"involvedObject.uid={leaders_uid or group_set['metadata']['uid']}")
        if selectors and seen.desired:
            found[str(group_set["metadata"]["uid"])] = selectors
    return found


def workload(
    group_set: Object,
    leaders_uid: str,
    pods: Sequence[Object],
    leaving: Container[str] = (),
    failures: Mapping[str, Found] = NO_FAILURES,
) -> Workload:
    """Parse a LeaderWorkerSet of ours with its pods; `leaving` as for a ReplicaSet.

    `failures`: as for a ReplicaSet, and by the uid of the LeaderWorkerSet why it lacks pods. A group is ready when its
    leader and all its workers are.
    """
    metadata, spec = group_set["metadata"], group_set["spec"]
    own = sorted(_own(metadata["name"], leaders_uid, pods), key=lambda pod: str(pod["metadata"]["name"]))
    living = [pod for pod in own if not pod_trouble.has_ended(pod)]
    present = [pod for pod in living if not is_leaving(pod)]
    workers = [pod for pod in present if not is_controlled_by(pod, leaders_uid)]
    leaders = [pod for pod in present if is_controlled_by(pod, leaders_uid)]
    size = int(spec["leaderWorkerTemplate"].get("size", 1))
    groups = tuple(
        _group(leader, [pod for pod in workers if _index(pod) == _index(leader)], size, leaving) for leader in leaders
    )
    absent = max(0, int(spec.get("replicas", 1)) * size - len(present))
    refusal = failures.get(str(metadata["uid"])) if absent else None
    refused = [pod_trouble.of_group_set(group_set, refusal)] if refusal else []
    return Workload(
        revision=str(metadata["labels"][labels.REVISION]),
        desired=int(spec.get("replicas", 1)),
        # Pods that are terminating still use their nodes.
        replicas=len({_index(pod) for pod in living}),
        ready=sum(pod.ready for pod in groups),
        creating=absent + sum(pod_trouble.is_creating(pod) for pod in living),
        unschedulable=sum(pod_trouble.is_unschedulable(pod) for pod in living),
        pods=groups,
        troubles=tuple(dict.fromkeys([*refused, *_troubles(living, own, failures)]))[:MAX_TROUBLES],
        stuck_deleting=is_leaving(group_set),
        name=metadata["name"],
        scheduled=tuple(str(pod["metadata"]["name"]) for pod in living if pod_trouble.is_scheduled(pod)),
        uid=leaders_uid,
        kind=labels.LEADER_WORKER_SET,
        record=str((metadata.get("annotations") or {}).get(labels.RECORD) or ""),
        workers=tuple(replace(parse_pod(pod, leaving), group=_index(pod)) for pod in workers),
    )


def _own(name: str, leaders_uid: str, pods: Iterable[Object]) -> list[Object]:
    return [pod for pod in pods if is_controlled_by(pod, leaders_uid) or _is_worker(pod, name)]


def _is_worker(pod: Object, name: str) -> bool:
    """Whether a pod is a worker of the LeaderWorkerSet `name`: its StatefulSet has the name of its group's leader."""
    kind, owner = controller_of(pod)
    return kind == STATEFUL_SETS.kind and bool(_index(pod)) and owner == f"{name}-{_index(pod)}"


def _index(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(labels.GROUP_INDEX) or "")


def _group(leader: Object, workers: list[Object], size: int, leaving: Container[str]) -> Pod:
    """Return a group as one Pod: the leader, with readiness, restarts and leaving of all its pods together."""
    lead, others = parse_pod(leader, leaving), [parse_pod(pod, leaving) for pod in workers]
    return replace(
        lead,
        ready=lead.ready and sum(pod.ready for pod in others) >= size - 1,
        restarts=lead.restarts + sum(pod.restarts for pod in others),
        leaving=lead.leaving or any(pod.leaving for pod in others),
        group=_index(leader),
    )


def _troubles(living: list[Object], own: list[Object], failures: Mapping[str, Found]) -> list[PodTrouble]:
    """Return why pods are not ready, also pods that are being deleted.

    LeaderWorkerSet deletes a group as soon as one of its containers ends, so only such pods show how it ended.
    """
    ended = (pod_trouble.of_leaving_pod(pod) for pod in own)
    return [
        *pod_trouble.of_pods(living, failures),
        *pod_trouble.of_pods(own),
        *(trouble for trouble in ended if trouble),
    ]
