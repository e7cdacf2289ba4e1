"""Reads what belongs to one ModelDeployment into Observed."""

import asyncio
from typing import Any

from slipway_operator.kube import pod_trouble
from slipway_operator.kube.autoscalers import Autoscalers, belongs_to
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound, Refused
from slipway_operator.kube.gateways import Gateways
from slipway_operator.kube.known import ByKind
from slipway_operator.kube.resources import ANALYSIS_TEMPLATES, CONTROLLER_REVISIONS, PODS, REPLICA_SETS, SERVICES
from slipway_operator.model import labels, template, wire
from slipway_operator.model.observed import Observed, Pod, Snapshot, Workload
from slipway_operator.model.spec import Invalid, parse, parse_inputs
from slipway_operator.model.template import BUILT_IN, Template
from slipway_operator.model.weights import ANNOTATION, Weights, reported
from slipway_operator.model.weights import parse as parse_weights
from slipway_operator.planning import weights

Object = dict[str, Any]

MAX_TROUBLES = 8  # of one revision; a message shows the first


async def observe(
    client: Client, gateways: Gateways, obj: Object, children: ByKind, autoscalers: Autoscalers | None = None
) -> Observed:
    """A ModelDeployment with its children; the gateways and the autoscalers are asked how they are now."""
    metadata = obj["metadata"]
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    answers, templates, scalers = await asyncio.gather(
        gateways.answers(),
        analysis_templates(client, obj),
        (autoscalers or Autoscalers(client)).of(obj),
    )
    pods = children[PODS]
    owned = [item for item in children[REPLICA_SETS] if is_owned(item, uid)]
    snapshots = {
        item.revision: item
        for item in (snapshot(it, name) for it in children[CONTROLLER_REVISIONS] if is_owned(it, uid))
    }
    found = (workload(it, pods) for it in owned)
    return Observed(
        snapshots=snapshots,
        workloads={item.revision: weights.held(item, snapshots.get(labels.what_runs(item.revision))) for item in found},
        services=frozenset(
            revision_of(item) for item in children[SERVICES] if is_owned(item, uid) and not _is_leaving(item)
        ),
        gateways=tuple(answer.about(namespace, name, uid) for answer in answers),
        templates=templates,
        autoscalers=scalers,
    )


async def analysis_templates(client: Client, obj: Object) -> dict[str, Template]:
    """The templates that the spec names, as they are now: also before a rollout, which may begin in this very plan."""
    spec = parse(obj)
    if isinstance(spec, Invalid):
        return {}
    names = list(dict.fromkeys(spec.strategy.templates))
    found = await asyncio.gather(*(_template(client, obj["metadata"]["namespace"], name) for name in names))
    return dict(zip(names, found, strict=True))


async def _template(client: Client, namespace: str, name: str) -> Template:
    try:
        item = await client.get(ANALYSIS_TEMPLATES, namespace, name)
    except NotFound:
        return template.found(name, None)
    except Refused as error:  # an operator that was upgraded before its permissions were
        return BUILT_IN.get(name) or Template(problem=f"AnalysisTemplate {name!r} cannot be read: {error}")
    return template.found(name, item.get("spec") or {})


def is_owned(item: Object, uid: str) -> bool:
    """Whether an object has our labels and belongs to this very ModelDeployment, not to a former namesake."""
    return labels.REVISION in (item["metadata"].get("labels") or {}) and belongs_to(item, uid)


def revision_of(item: Object) -> str:
    """The revision that an object of ours belongs to."""
    return str(item["metadata"]["labels"][labels.REVISION])


def snapshot(item: Object, name: str) -> Snapshot:
    """Read a ControllerRevision of ours."""
    data = item["data"]
    return Snapshot(
        revision=revision_of(item),
        ordinal=int(item["revision"]),
        inputs=parse_inputs(data["inputs"], name),
        image=data["image"],
        drain_timeout_s=int(data["drainTimeoutSeconds"]),
        template_version=int(data["templateVersion"]),
        weights=parse_weights((item["metadata"].get("annotations") or {}).get(ANNOTATION)),
    )


def workload(replica_set: Object, pods: list[Object]) -> Workload:
    """Read a ReplicaSet of ours and the pods among `pods` that are its own."""
    status = replica_set.get("status") or {}
    uid = replica_set["metadata"]["uid"]
    own = sorted((pod for pod in pods if belongs_to(pod, uid)), key=lambda pod: str(pod["metadata"]["name"]))
    living = [pod for pod in own if not pod_trouble.has_ended(pod)]
    # Pods that ended come last: they were replaced, and the replacement's word is news.
    found = (pod_trouble.of_replica_set(replica_set), *pod_trouble.of_pods(living), *pod_trouble.of_pods(own))
    return Workload(
        revision=revision_of(replica_set),
        desired=int(replica_set["spec"].get("replicas", 1)),
        # A pod that is leaving has left the ReplicaSet's count, but not its node, nor its requests.
        replicas=max(int(status.get("replicas", 0)), len(living)),
        ready=int(status.get("readyReplicas", 0)),
        unschedulable=sum(pod_trouble.is_unschedulable(pod) for pod in living),
        pods=tuple(_pod(pod) for pod in living if not _is_leaving(pod)),
        troubles=tuple(dict.fromkeys(trouble for trouble in found if trouble))[:MAX_TROUBLES],
        stuck_deleting=_is_leaving(replica_set),
        uid=uid,
    )


def _pod(pod: Object) -> Pod:
    metadata = pod["metadata"]
    made = wire.parse_time(metadata["creationTimestamp"])
    address = (pod.get("status") or {}).get("podIP") or ""
    ready, restarts = pod_trouble.is_ready(pod), pod_trouble.restarts(pod)
    return Pod(metadata["name"], made, ready, restarts, address, _loaded(pod))


def _loaded(pod: Object) -> Weights | None:
    """What the fetcher of a pod said when it succeeded."""
    for container in (pod.get("status") or {}).get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if container.get("name") == "fetch" and ended.get("exitCode") == 0:
            return reported(str(ended.get("message") or ""))
    return None


def _is_leaving(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))
