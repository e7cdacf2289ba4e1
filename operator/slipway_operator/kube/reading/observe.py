"""Reads the objects and gateways of one ModelDeployment into Observed."""

import asyncio
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from slipway_contracts import verdict_statements
from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound, Refused
from slipway_operator.kube.ownership import foreign_controller, is_controlled_by, is_leaving
from slipway_operator.kube.reading import groups, pod_trouble
from slipway_operator.kube.reading.autoscalers import Autoscalers
from slipway_operator.kube.reading.cache import ByKind
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.kube.reading.kubelet_events import KubeletEvents
from slipway_operator.kube.reading.nodes import Nodes
from slipway_operator.kube.reading.pod_trouble import NO_FAILURES, Found
from slipway_operator.kube.reading.pods import parse_pod
from slipway_operator.kube.resources import (
    ANALYSIS_TEMPLATES,
    CONTROLLER_REVISIONS,
    LEADER_WORKER_SETS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    Resource,
)
from slipway_operator.model import labels
from slipway_operator.model.analysis import template
from slipway_operator.model.analysis.template import BUILT_IN, Template
from slipway_operator.model.cluster import history
from slipway_operator.model.cluster.observed import Child, Observed, Snapshot, Workload
from slipway_operator.model.cluster.weights import ANNOTATION
from slipway_operator.model.cluster.weights import parse as parse_weights
from slipway_operator.model.deployment.spec import Invalid, Spec
from slipway_operator.model.inputs.pod_inputs import parse_inputs
from slipway_operator.planning.facts import standby, weights
from slipway_operator.planning.facts.revision import revision_hash

# With any of these pods have resourceClaims; the later two are of clusters where a feature gate adds them.
RESOURCE_CLAIMS = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")
MAX_TROUBLES = 8  # of one revision; a message shows the first
MAX_FOREIGN = 8  # reported objects with our labels that other controllers own; a message shows some


class GatewayReports(Protocol):
    """The gateways, as `kube.reading.gateways.Gateways` polls them."""

    async def answers(self) -> Sequence[Answer]:
        """Return the report of each gateway."""


class Observer:
    """Reads what plans need beside the spec and the status."""

    def __init__(self, client: Client, gateways: GatewayReports, nodes: Nodes | None = None) -> None:
        """`nodes`: drained or unreachable ones, which a watch keeps up to date; none where nothing watches them."""
        self._client, self._gateways, self._nodes = client, gateways, nodes or Nodes()
        self.autoscalers, self._kubelet = Autoscalers(client), KubeletEvents(client)

    async def observe(self, obj: Object, spec: Spec | Invalid, children: ByKind) -> Observed:
        """Return the state of a ModelDeployment: `children` as given; templates, gateways and autoscalers as now."""
        metadata = obj["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        records, records_spare = _one_each(children[CONTROLLER_REVISIONS], uid, _record_order)
        snapshots = {item.revision: item for item in (snapshot(it, name) for it in records) if item}
        answers, templates, scalers, failures, group_sets, serves_claims = await asyncio.gather(
            self._gateways.answers(),
            analysis_templates(self._client, obj, spec),
            self.autoscalers.of(obj),
            self._kubelet.failures(namespace, children[PODS]),
            _group_sets(self._client, obj, spec, snapshots.values(), children[PODS]),
            _serves_claims(self._client, spec),
        )
        sets, sets_spare = _one_each(children[REPLICA_SETS], uid, _replica_set_order(obj))
        grouped, grouped_spare = _one_each(group_sets.objects, uid, _order)
        services, services_spare = _one_each(children[SERVICES], uid, _order)
        leaving = self._nodes.leaving
        pods = children[PODS]
        held = [(it, of) for it, of in group_sets.items if it in grouped and not _is_lost(it)]
        refusals = await self._kubelet.refusals(namespace, groups.missing(held, pods))
        found = (
            *(pool_entry(it) or workload(it, pods, leaving, failures) for it in sets if not _is_lost(it)),
            *(groups.workload(it, of, pods, leaving, failures | refusals) for it, of in held),
        )
        workloads, waiting = standby.joined(found)
        snapshots |= {item.revision: item for item in rebuilt(workloads, snapshots, name)}
        return Observed(
            snapshots=snapshots,
            workloads={
                item.revision: weights.held(item, snapshots.get(labels.what_runs(item.revision))) for item in workloads
            },
            standby=waiting,
            services={revision_of(item): item["metadata"]["name"] for item in services if not is_leaving(item)},
            astray=frozenset(revision_of(item) for item in services if not selects(item, name)),
            spare=(
                *_children(SERVICES, services_spare),
                *_children(REPLICA_SETS, sets_spare),
                *_children(LEADER_WORKER_SETS, grouped_spare),
                *_children(CONTROLLER_REVISIONS, records_spare),
            ),
            foreign=_foreign({**children, LEADER_WORKER_SETS: group_sets.objects}, obj),
            gateways=tuple(answer.about(namespace, name, uid) for answer in answers),
            templates=templates,
            autoscalers=scalers,
            sees_drains=self._nodes.watched,
            no_groups=group_sets.problem,
            serves_claims=serves_claims,
        )


async def _group_sets(
    client: Client, obj: Object, spec: Spec | Invalid, snapshots: Iterable[Snapshot], pods: Iterable[Object]
) -> groups.GroupSets:
    """Read LeaderWorkerSets if a revision or a pod has one or the spec wants one: most clusters lack this kind."""
    wanted = not isinstance(spec, Invalid) and spec.inputs.engine.parallelism.nodes > 1
    grouped = any(labels.GROUP_SET in (pod["metadata"].get("labels") or {}) for pod in pods)
    if not wanted and not grouped and not any(item.is_grouped for item in snapshots):
        return groups.GroupSets()
    return await groups.read(client, obj["metadata"]["namespace"], obj["metadata"]["name"])


Order = Callable[[Object], tuple[Any, ...]]


def _one_each(items: Iterable[Object], uid: str, order: Order) -> tuple[list[Object], list[Object]]:
    """Return the first of our objects of each revision by `order`, and the spare ones.

    A spare one exists where a foreign controller released an object after another one had replaced it.
    """
    first: dict[str, Object] = {}
    spare: list[Object] = []
    for item in sorted((item for item in items if is_owned(item, uid)), key=order):
        if first.setdefault(revision_of(item), item) is not item and not is_leaving(item):
            spare.append(item)
    return list(first.values()), spare


def _order(item: Object) -> tuple[Any, ...]:
    """Return a sort key: objects that are being deleted come last, older ones before newer ones."""
    metadata = item["metadata"]
    return is_leaving(item), metadata["creationTimestamp"], metadata["name"]


def _record_order(item: Object) -> tuple[Any, ...]:
    """Return a sort key: readable records come first, and among these the ones that record the weights."""
    return snapshot(item, "") is None, ANNOTATION not in (item["metadata"].get("annotations") or {}), *_order(item)


def _replica_set_order(obj: Object) -> Order:
    """Return a sort key: ReplicaSets in the status come first (gateways use them), then those with most ready pods."""
    # From the raw status: the schema guarantees its shape, and parsing a whole status again takes long.
    in_use = {item.get("replicaSetUid") for item in (obj.get("status") or {}).get("revisions") or ()}

    def order(item: Object) -> tuple[Any, ...]:
        ready = int((item.get("status") or {}).get("readyReplicas") or 0)
        return is_leaving(item), item["metadata"]["uid"] not in in_use, -ready, *_order(item)

    return order


def _is_lost(replica_set: Object) -> bool:
    """Whether a ReplicaSet has no ready pod and gets none: while it is deleted, its controller creates no pods."""
    return is_leaving(replica_set) and not (replica_set.get("status") or {}).get("readyReplicas")


def _children(kind: Resource, items: Iterable[Object]) -> list[Child]:
    return [Child(kind.api_version, kind.kind, item["metadata"]["name"], revision_of(item)) for item in items]


def _foreign(children: ByKind, obj: Object) -> tuple[Child, ...]:
    """Return objects with our labels that another controller owns."""
    found = [
        Child(kind.api_version, kind.kind, item["metadata"]["name"], revision_of(item), controller)
        for kind in (REPLICA_SETS, LEADER_WORKER_SETS, SERVICES, CONTROLLER_REVISIONS)
        for item in children[kind]
        if labels.REVISION in item["metadata"]["labels"] and (controller := foreign_controller(item, obj))
        # A StatefulSet copies the labels of its pods to the records of its own revisions.
        if labels.GROUP_SET not in item["metadata"]["labels"]
    ]
    return tuple(sorted(found, key=lambda item: (item.kind, item.name))[:MAX_FOREIGN])


async def analysis_templates(client: Client, obj: Object, spec: Spec | Invalid) -> dict[str, Template]:
    """Read the AnalysisTemplates that the spec names; also before a rollout, which may begin in this plan."""
    if isinstance(spec, Invalid):
        return {}
    names = list(dict.fromkeys(spec.strategy.templates))
    found = await asyncio.gather(*(_template(client, obj["metadata"]["namespace"], name) for name in names))
    return dict(zip(names, found, strict=True))


async def _serves_claims(client: Client, spec: Spec | Invalid) -> bool:
    """Whether the API server serves ResourceClaims; True without a request when the spec names none."""
    if isinstance(spec, Invalid) or not spec.inputs.resources.has_claim:
        return True
    for version in RESOURCE_CLAIMS:
        if await client.serves(version):
            return True
    return False


async def _template(client: Client, namespace: str, name: str) -> Template:
    try:
        item = await client.get(ANALYSIS_TEMPLATES, namespace, name)
    except NotFound:
        return template.found(name, None)
    except Refused as error:  # the operator was upgraded before its permissions
        return BUILT_IN.get(name) or Template(problem=f"AnalysisTemplate {name!r} cannot be read: {error}")
    return template.found(name, item.get("spec") or {})


def is_owned(item: Object, uid: str) -> bool:
    """Whether an object has our labels and its controller has this uid, not a former object of the same name."""
    return labels.REVISION in (item["metadata"].get("labels") or {}) and is_controlled_by(item, uid)


def selects(service: Object, name: str) -> bool:
    """Whether a Service of a revision selects its pods; labels of others may narrow that."""
    wanted = {labels.MODEL_DEPLOYMENT: name, labels.REVISION: revision_of(service)}
    found = service["spec"].get("selector") or {}
    return all(found.get(key) == value for key, value in wanted.items())


def revision_of(item: Object) -> str:
    """Return the revision that an object of ours belongs to."""
    return str(item["metadata"]["labels"][labels.REVISION])


def snapshot(item: Object, name: str) -> Snapshot | None:
    """Parse a ControllerRevision of ours; None when its content is not what we wrote."""
    try:
        return _snapshot(item, name)
    except _MALFORMED:
        return None


def rebuilt(workloads: Iterable[Workload], snapshots: Mapping[str, Snapshot], name: str) -> list[Snapshot]:
    """The records of revisions that have lost their ControllerRevision, from the copies at their workloads.

    The revision's name proves a copy: it is the hash of the user's inputs. Any other copy counts as none.
    """
    lost = (item for item in workloads if item.record and item.revision not in snapshots)
    copies = (_copied(item.revision, item.record, name) for item in lost)
    return [copy for copy in copies if copy and _has_its_hash(copy)]


def is_proved(kind: Resource, item: Object, children: ByKind, name: str) -> bool:
    """Whether what an object's revision runs has the hash that is the revision's name.

    A record has it itself, a ReplicaSet its copy or else the record; a Service has only the labels.
    """
    if kind is CONTROLLER_REVISIONS:
        return _has_its_hash(snapshot(item, name))
    if kind is not REPLICA_SETS:
        return True
    revision, text = labels.what_runs(revision_of(item)), _copy_at(item)
    if text:
        return _has_its_hash(_copied(revision, text, name))
    records = (snapshot(one, name) for one in children[CONTROLLER_REVISIONS])
    return any(one and one.revision == revision and _has_its_hash(one) for one in records)


def _has_its_hash(found: Snapshot | None) -> bool:
    return found is not None and revision_hash(found.inputs) == found.revision


def _copied(revision: str, text: str, name: str) -> Snapshot | None:
    try:
        content = json.loads(text)
        metadata = {"name": "", "labels": {labels.REVISION: revision}, "annotations": content["annotations"]}
        return _snapshot({**content, "metadata": metadata}, name)
    except (*_MALFORMED, RecursionError):
        return None


# Errors of parsing data that is no record of ours.
_MALFORMED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


def _snapshot(item: Object, name: str) -> Snapshot:
    data, annotations = item["data"], item["metadata"].get("annotations") or {}
    return Snapshot(
        revision=revision_of(item),
        ordinal=int(item["revision"]),
        inputs=parse_inputs(data["inputs"], name),
        image=data["image"],
        drain_timeout_s=int(data["drainTimeoutSeconds"]),
        template_version=int(data["templateVersion"]),
        weights=parse_weights(annotations.get(ANNOTATION)),
        history=history.parse(annotations.get(history.ANNOTATION)),
        name=item["metadata"]["name"],
        fetcher_image=str(data.get("fetcherImage", "")),
        accelerator=dict(data.get("accelerator") or {}),
        tls=data.get("tls") is True,
        pull_secrets=tuple(str(name) for name in data.get("pullSecrets") or ()),
        tracking_url=str(data.get("trackingUrl", "")),
        statement=str(annotations.get(verdict_statements.ANNOTATION) or ""),
    )


def pool_entry(replica_set: Object) -> Workload | None:
    """Parse a ReplicaSet that stands for an entry of a pool; None for one that has pods."""
    metadata = replica_set["metadata"]
    written = (metadata.get("annotations") or {}).get(labels.POOL_REPLICAS)
    if written is None:
        return None
    desired, leaving = int(written == "1"), is_leaving(replica_set)
    found = Workload(revision_of(replica_set), desired, desired, 0, stuck_deleting=leaving, name=metadata["name"])
    return replace(found, kind=labels.POOL_KIND, record=_copy_at(replica_set))


def workload(
    replica_set: Object,
    pods: list[Object],
    leaving: Container[str] = (),
    failures: Mapping[str, Found] = NO_FAILURES,
) -> Workload:
    """Parse a ReplicaSet of ours and those of `pods` that it controls.

    `leaving`: nodes that are drained or unreachable. `failures`: by pod uid, what the kubelet reports in Events.
    """
    status = replica_set.get("status") or {}
    uid = replica_set["metadata"]["uid"]
    own = sorted((pod for pod in pods if is_controlled_by(pod, uid)), key=lambda pod: str(pod["metadata"]["name"]))
    living = [pod for pod in own if not pod_trouble.has_ended(pod)]
    # Pods that ended come last: they were replaced, and troubles of the replacements are newer.
    found = (pod_trouble.of_replica_set(replica_set), *pod_trouble.of_pods(living, failures), *pod_trouble.of_pods(own))
    return Workload(
        revision=revision_of(replica_set),
        desired=int(replica_set["spec"].get("replicas", 1)),
        # A terminating pod is not in the ReplicaSet's count, but still uses its node and serves requests.
        replicas=max(int(status.get("replicas", 0)), len(living)),
        ready=int(status.get("readyReplicas", 0)),
        creating=sum(pod_trouble.is_creating(pod) for pod in living),
        unschedulable=sum(pod_trouble.is_unschedulable(pod) for pod in living),
        pods=tuple(parse_pod(pod, leaving) for pod in living if not is_leaving(pod)),
        troubles=tuple(dict.fromkeys(trouble for trouble in found if trouble))[:MAX_TROUBLES],
        stuck_deleting=is_leaving(replica_set),
        name=replica_set["metadata"]["name"],
        scheduled=tuple(str(pod["metadata"]["name"]) for pod in living if pod_trouble.is_scheduled(pod)),
        uid=uid,
        record=_copy_at(replica_set),
    )


def _copy_at(workload: Object) -> str:
    """Return the copy of its revision's record that a workload has; empty without one."""
    return str((workload["metadata"].get("annotations") or {}).get(labels.RECORD) or "")
