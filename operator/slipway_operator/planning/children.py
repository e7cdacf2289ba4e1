"""Objects that a plan creates, scales and deletes: revisions, their workloads and Services."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.status import State
from slipway_operator.manifests.groups.leader_worker_set import workload
from slipway_operator.manifests.history import controller_revision, copy_of
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.standby import standby_set
from slipway_operator.manifests.service import headless_service
from slipway_operator.model import labels
from slipway_operator.model.cluster import history
from slipway_operator.model.cluster.observed import Child, Snapshot, Workload
from slipway_operator.model.cluster.plan import Annotate, Create, Delete, Scale
from slipway_operator.model.inputs.pod_inputs import SLIPWAY
from slipway_operator.model.inputs.registry import ARTIFACTS
from slipway_operator.planning.decided import Decided, PlanSettings
from slipway_operator.planning.facts import recall, revision, standby
from slipway_operator.planning.facts.situation import Situation
from slipway_operator.planning.sizing import baseline
from slipway_operator.planning.sizing.replicas import retired
from slipway_operator.planning.sizing.standby import Share


def creations(owner: Owner, decided: Decided, at: Situation, settings: PlanSettings) -> tuple[Create, ...]:
    """Objects to create: a revision's record (ControllerRevision) first, its workload last.

    A workload without its record could not be explained later.
    """
    course = decided.course
    target = None if course.state is State.ABORTING else course.target
    wanted = [name for name in (course.stable, target) if name]
    records = at.observed.snapshots | {at.current: at.observed.snapshots.get(at.current) or _described(at, settings)}
    manifests = [controller_revision(owner, item) for item in records.values() if not item.name]
    for name in wanted:
        snapshot = records.get(name)
        if snapshot is None or (snapshot.is_grouped and at.observed.no_groups):
            continue
        # LeaderWorkerSet makes a Service of its own, of the same name, by which the pods of a group find each other.
        lacks_service = name not in at.observed.services or name in at.observed.astray
        if lacks_service and not snapshot.is_grouped and snapshot.inputs.has_pods:
            manifests.append(headless_service(owner, name, tls=snapshot.tls))
        if at.workload(name) is None:
            manifests.append(workload(owner, snapshot, decided.shares[name].own))
        if decided.shares[name].standby and name not in at.observed.standby:
            manifests.append(
                standby_set(owner, snapshot, decided.shares[name].standby, settings.standby_priority_class)
            )
    manifests += baseline.manifests(owner, course, at, decided.sizes)
    uids = {item.revision: item.replica_set_uid for item in at.status.revisions}
    uids |= {labels.standby_of(item.revision): item.standby_uid for item in at.status.revisions}
    return tuple(
        Create(item, uids.get(_made_for(item)) if item["kind"] == "ReplicaSet" else None) for item in manifests
    )


def annotations(at: Situation) -> tuple[Annotate, ...]:
    """What outlives a lost status: the histories of records; and copies of the records, at their workloads."""
    snapshots, changed = at.observed.snapshots, recall.histories(at.status, at.observed)
    snapshots = snapshots | {name: replace(snapshots[name], history=item) for name, item in changed.items()}
    recorded = (snapshots[name] for name in sorted(changed) if snapshots[name].name)
    held = ((item, snapshots[name]) for name, item in sorted(at.observed.workloads.items()) if name in snapshots)
    return (
        *(
            Annotate("ControllerRevision", item.name, history.ANNOTATION, history.render(item.history))
            for item in recorded
        ),
        *(copy for item, snapshot in held if (copy := _copy(item, copy_of(snapshot)))),
    )


def _copy(workload: Workload, text: str) -> Annotate | None:
    """Write the copy of a record to its workload; None where it is there, or too long."""
    if not text or text == workload.record or workload.stuck_deleting:
        return None
    kind = labels.LEADER_WORKER_SET if workload.kind == labels.LEADER_WORKER_SET else "ReplicaSet"
    return Annotate(kind, workload.name, labels.RECORD, text)


def _made_for(manifest: Json) -> str:
    return str(manifest["metadata"]["labels"][labels.REVISION])


def _described(at: Situation, settings: PlanSettings) -> Snapshot:
    """The record of the revision that the spec describes."""
    return Snapshot(
        revision=at.current,
        ordinal=revision.next_ordinal(at.observed.snapshots),
        inputs=at.spec.inputs,
        image=settings.image_of(at.spec.inputs),
        drain_timeout_s=at.spec.drain_timeout_s,
        template_version=revision.TEMPLATE_VERSION,
        fetcher_image="" if at.spec.inputs.engine.type == SLIPWAY else settings.server_image,
        accelerator=settings.policy.accelerator(at.spec.inputs),
        tls=settings.tls and at.spec.inputs.engine.type == SLIPWAY,
        pull_secrets=settings.pull_secrets,
        tracking_url=settings.tracking_url if at.spec.inputs.model.scheme == ARTIFACTS else "",
    )


def scalings(at: Situation, shares: Mapping[str, Share]) -> tuple[Scale, ...]:
    """Workloads whose replica count changes."""
    return (
        *_scalings(at, (_own(at, item) for item in at.observed.workloads.values()), lambda name: shares[name].own),
        *_scalings(at, at.observed.standby.values(), lambda name: shares[labels.what_runs(name)].standby),
    )


def _scalings(at: Situation, items: Iterable[Workload], wanted: Callable[[str], int]) -> Iterable[Scale]:
    for item in sorted(items, key=lambda item: item.revision):
        desired = wanted(item.revision)
        if desired != item.desired and not item.stuck_deleting:
            yield Scale(item.name, desired, item.kind, _costs(at, item, desired), _uid(item))


def _own(at: Situation, item: Workload) -> Workload:
    """The workload as its object is: without standby pods, which have a ReplicaSet of their own."""
    serving = standby.serving(at.observed, item.revision)
    return replace(
        item, desired=item.desired - len(serving), pods=tuple(pod for pod in item.pods if pod not in serving)
    )


def _uid(item: Workload) -> str:
    """The uid of the object that is scaled, where the workload has that one's and not its pods' controller's."""
    return item.uid if item.kind == "ReplicaSet" else ""


def _costs(at: Situation, item: Workload, desired: int) -> tuple[tuple[str, int], ...]:
    """New pod-deletion-costs, by pod, for a ReplicaSet that is scaled down: pods with the fewest requests go first.

    Kubernetes deletes pods that are not ready before all others, whatever their cost. Empty where the requests are not
    known, where no pod or every pod goes, and for groups, which go by their index.
    """
    if not 0 < desired < item.desired or item.kind != "ReplicaSet":
        return ()
    busy = at.observed.inflight_by_address(_serves_as(item.revision))
    if busy is None:
        return ()
    wanted = ((pod, busy.get(pod.address, 0)) for pod in item.pods)
    return tuple((pod.name, cost) for pod, cost in wanted if cost != pod.deletion_cost)


def _serves_as(revision: str) -> str:
    """The revision by which gateways count the requests of these pods."""
    return labels.what_runs(revision) if labels.is_standby(revision) else revision


def _is_gone(at: Situation, name: str) -> bool:
    found = at.observed.workloads[name]
    return found.desired == 0 and found.replicas == 0


def deletions(decided: Decided, at: Situation) -> tuple[Delete, ...]:
    """Objects to delete: empty workloads with their Services, records beyond revisionHistoryLimit, spare objects."""
    course, observed = decided.course, at.observed
    gone = [name for name in retired(course, at, decided.sizes) if _is_gone(at, name)]
    in_use = {course.stable, course.previous, at.current, at.wanted, *observed.workloads, *observed.standby}
    in_use |= {course.rollout.revision} if course.rollout else set()
    forgotten = revision.forgotten(at.observed.snapshots, in_use, at.spec.revision_history_limit)
    return (
        *(Delete("v1", "Service", name) for name in _spare_services(decided, at, gone)),
        *(_deletion(observed.workloads[name]) for name in gone),
        *(_deletion(item) for name, item in sorted(observed.standby.items()) if _is_spent(item, decided.shares[name])),
        *(Delete("apps/v1", "ControllerRevision", observed.snapshots[name].name) for name in forgotten),
        *(Delete(one.api_version, one.kind, one.name) for one in observed.spare if _may_go(one, at)),
    )


def _is_spent(standby_pods: Workload, share: Share) -> bool:
    """Whether a ReplicaSet of standby pods is empty and stays so."""
    return share.standby == standby_pods.desired == standby_pods.replicas == 0


def _spare_services(decided: Decided, at: Situation, gone: Collection[str]) -> list[str]:
    """Names of the Services of revisions whose workload goes, or was deleted by others and does not come again."""
    kept = (decided.desired.keys() | at.observed.workloads.keys()) - set(gone)
    return [name for of, name in sorted(at.observed.services.items()) if of not in kept]


def _deletion(gone: Workload) -> Delete:
    if gone.kind == labels.LEADER_WORKER_SET:
        return Delete(labels.GROUPS_API_VERSION, gone.kind, gone.name)
    return Delete("apps/v1", "ReplicaSet", gone.name)


def _may_go(spare: Child, at: Situation) -> bool:
    """Whether a spare object may be deleted: a workload only once the status, as read, names the one that stays."""
    if spare.kind not in ("ReplicaSet", labels.LEADER_WORKER_SET):
        return True
    if labels.is_standby(spare.revision):
        return True
    uids = {item.revision: item.replica_set_uid for item in at.status.revisions}
    kept = at.workload(spare.revision)
    return kept is not None and bool(kept.uid) and uids.get(spare.revision) == kept.uid
