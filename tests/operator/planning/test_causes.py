"""Causes, from statuses as API servers, schedulers and kubelets of Kubernetes 1.30 to 1.36 write them."""

import re
from typing import Any

import pytest

from slipway_operator.kube.reading.pod_trouble import is_creating, is_unschedulable, of_pod, of_replica_set
from slipway_operator.model.cluster.observed import PodTrouble, Workload
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.planning.facts import causes, scheduling
from slipway_operator.planning.facts.causes import Cause
from tests.support.api_server import ROOT
from tests.support.model_cluster import healthy, model

ASKED = Resources(cpu="2", memory="4Gi", accelerator=("nvidia.com/gpu", 1))
PREEMPTION = " no new claims to deallocate, preemption: 0/3 nodes are available: "
USELESS = PREEMPTION + "3 Preemption is not helpful for scheduling."
FETCH_404 = "https://models.example.com/chat.tar answered 404 Not Found."
MOUNT = 'MountVolume.SetUp failed for volume "extra" : '
TRACE = (
    '{"ts": "2026-01-01T00:00:00.000+00:00", "level": "info", "msg": "ready"}\n'
    'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: no more threads\n'
)


def refused(message: str) -> Cause:
    """The cause for a ReplicaSet that may not create its pods."""
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    return cause_of(of_replica_set({"metadata": {"name": "chat-x"}, "status": {"conditions": [failure]}}))


def queued(message: str, reason: str = "Unschedulable") -> Cause:
    """A pod that the scheduler looked at."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    pod = {"metadata": {"name": "chat-x-1"}, "status": {"phase": "Pending", "conditions": [scheduled]}}
    assert is_unschedulable(pod) == (reason == "Unschedulable")
    return cause_of(of_pod(pod))


def waits(reason: str, message: str = "", last: dict[str, Any] | None = None, name: str = "server") -> Cause:
    """A container that waits, perhaps after it ended."""
    state = {"waiting": {"reason": reason, "message": message}}
    return pod_with({"name": name, "state": state, "lastState": {"terminated": last} if last else {}})


def crashed(code: int, message: str = "", reason: str = "Error", name: str = "server") -> Cause:
    """A container that ended so, and will be started again."""
    last = {"exitCode": code, "reason": reason, "message": message}
    return waits("CrashLoopBackOff", "back-off 10s restarting failed container", last, name)


def pod_with(container: dict[str, Any]) -> Cause:
    status = {"initContainerStatuses": [container]} if container["name"] == "fetch" else {}
    not_ready = [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]
    status = {"containerStatuses": [container], **status, "conditions": not_ready}
    return cause_of(of_pod({"metadata": {"name": "chat-x-1"}, "status": status}))


def creating(reason: str, message: str) -> Cause:
    """A pod that has a node and no container, and what the kubelet reports about it."""
    waiting = [{"name": "server", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    placed = {"type": "PodScheduled", "status": "True"}
    status = {"phase": "Pending", "containerStatuses": waiting, "conditions": [placed]}
    pod = {"metadata": {"name": "chat-x-1", "uid": "1"}, "status": status}
    assert is_creating(pod) and of_pod(pod) is None
    return cause_of(of_pod(pod, {"1": (reason, message, None)}))


def ended(reason: str, message: str) -> Cause:
    """A pod that the node stopped or refused."""
    status = {"phase": "Failed", "reason": reason, "message": message}
    return cause_of(of_pod({"metadata": {"name": "chat-x-1"}, "status": status}))


def cause_of(trouble: PodTrouble | None) -> Cause:
    assert trouble is not None
    found = causes.of_workload(Workload("x", 1, 1, 0, (trouble,), unschedulable=1), ASKED)
    assert found is not None
    return found


# (cause, its reason, words that the message must have)
def of_pool(reason: str, message: str, where: str = "ModelPool") -> Cause:
    found = causes.of_workload(Workload("x", 1, 1, 0, (PodTrouble("shared", reason, message),)), Resources())
    assert found and found.message.startswith(f"{where} shared: {reason}: ")
    return found


CASES = [
    (
        of_pool("PoolNotFound", "there is no ModelPool shared in the namespace"),
        "PoolNotFound",
        ("no ModelPool shared", "spec.pool.name"),
    ),
    (
        of_pool("DeploymentNotReady", "no pod of the ModelDeployment chat is ready", "ModelDeployment"),
        "DeploymentNotReady",
        ("no pod of the ModelDeployment chat", "kubectl describe modeldeployment"),
    ),
    (
        of_pool("AdapterNotLoaded", "r is 64, and the highest rank is 16", "pod"),
        "AdapterNotLoaded",
        ("r is 64", "spec.adapters of the ModelDeployment"),
    ),
    (
        of_pool("PoolNotReady", "no pod of the ModelPool shared is ready"),
        "PoolNotReady",
        ("no pod of the ModelPool shared", "kubectl describe modelpool"),
    ),
    (
        refused(
            'pods "chat-x-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
            "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
        ),
        "QuotaExceeded",
        ("ReplicaSet chat-x: FailedCreate", "exceeded quota: gpus", "raise that ResourceQuota"),
    ),
    (
        refused('pods "chat-x-1" is forbidden: failed quota: compute: must specify limits.cpu for: fetch; server'),
        "QuotaExceeded",
        ("must specify limits.cpu",),
    ),
    (
        refused('pods "chat-x-1" is forbidden: maximum memory usage per Container is 64Mi, but limit is 4Gi'),
        "LimitRangeExceeded",
        ("maximum memory usage per Container is 64Mi", "LimitRange of the namespace"),
    ),
    (
        refused('pods "chat-x-1" is forbidden: cpu max limit to request ratio per Pod is 2, but provided ratio is 4'),
        "LimitRangeExceeded",
        (),
    ),
    (
        refused(
            'pods "chat-x-1" is forbidden: violates PodSecurity "restricted:latest": privileged '
            '(container "proxy" must not set securityContext.privileged=true)'
        ),
        "PodSecurityViolated",
        ('container "proxy"', "pass the level restricted"),
    ),
    (
        refused(
            'pods "chat-x-1" is forbidden: error looking up service account team/default: '
            'serviceaccount "default" not found'
        ),
        "ServiceAccountNotFound",
        ("team/default",),
    ),
    (
        refused('pods "chat-x-1" is forbidden: no PriorityClass with name high was found'),
        "PriorityClassNotFound",
        ("name high",),
    ),
    (
        refused('pods "chat-x-1" is forbidden: pod rejected: RuntimeClass "gvisor" not found'),
        "RuntimeClassNotFound",
        ("spec.pod.runtimeClassName",),
    ),
    (
        refused(
            'admission webhook "validate.kyverno.svc-fail" denied the request: resource Pod/team/chat-x-1 was blocked'
        ),
        "AdmissionDenied",
        ("Pod/team/chat-x-1 was blocked",),
    ),
    (
        refused(
            "pods \"chat-x-1\" is forbidden: ValidatingAdmissionPolicy 'owners' with binding 'owners' denied request: "
            "every pod needs the label team"
        ),
        "AdmissionDenied",
        ("needs the label team", "meet that policy"),
    ),
    (
        refused(
            'Internal error occurred: failed calling webhook "inject.example.com": failed to call webhook: '
            'Post "https://inject.tools.svc:443/": dial tcp 10.0.0.1:443: connect: connection refused'
        ),
        "WebhookUnavailable",
        ("connection refused",),
    ),
    (
        refused('failed to create typed patch object: .spec.template.spec.volumes[name="model-image"].image: field not '
                "declared in schema"),
        "ImageVolumesUnavailable", ("Kubernetes 1.35", "spec.model.cache"),
    ),
    (
        refused("spec.template.spec.volumes[2]: Required value: must specify a volume type"), "ImageVolumesUnavailable",
        ("ImageVolume",),
    ),
    (refused('pods "chat-x-1" is forbidden: unable to create new content'), "CreateFailed", ("unable to create",)),
    (
        causes.of_refusal('Service chat-x cannot be created: services "chat-x" is forbidden: exceeded quota: few'),
        "QuotaExceeded",
        ("Service chat-x cannot be created",),
    ),
    (
        queued("0/3 nodes are available: 3 Insufficient nvidia.com/gpu." + USELESS),
        "NoNodeOffersResource",
        ("1 pod finds no node: 0 of 3 nodes have 1 nvidia.com/gpu, even when empty", "device plugin"),
    ),
    (
        queued(
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu." + USELESS
        ),
        "NoNodeOffersResource",
        ("0 of 3 nodes have 1 nvidia.com/gpu", "1 of 3 nodes had untolerated taint(s)"),
    ),
    (
        queued(
            "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
            "2 Insufficient cpu, 2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: "
            "1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
        ),
        "InsufficientCapacity",
        (
            "1 x 1 nvidia.com/gpu missing, too little is free on 2 of 3 nodes",
            "1 x 2 cpu missing, too little is free on 2 of 3 nodes",
            "1 of 3 nodes had untolerated taint {node-role.kubernetes.io/control-plane: }",
        ),
    ),
    (
        queued("0/3 nodes are available: 3 Too many pods. preemption: 3 No preemption victims found for incoming pod."),
        "InsufficientCapacity",
        ("pods missing, too little is free on 3 of 3 nodes",),
    ),
    (
        queued("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),  # no word about preemption
        "InsufficientCapacity",
        ("too little is free on 3 of 3 nodes", "free some or add nodes"),
    ),
    (
        queued("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector." + USELESS),
        "NoMatchingNode",
        ("3 of 3 nodes didn't match Pod's node affinity/selector", "label, untaint or uncordon"),
    ),
    (
        queued(
            "0/3 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, "
            "2 node(s) were unschedulable." + USELESS
        ),
        "NoMatchingNode",
        ("1 of 3 nodes didn't match PersistentVolume's node affinity", "2 of 3 nodes were unschedulable"),
    ),
    (
        queued(
            "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules. "
            "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
        ),
        "InsufficientCapacity",  # others that leave would make room
        ("3 of 3 nodes didn't match pod anti-affinity rules",),
    ),
    (
        queued('0/3 nodes are available: persistentvolumeclaim "weights" not found. not found'),
        "ClaimNotFound",
        ('1 pod finds no node: persistentvolumeclaim "weights" not found; create that PersistentVolumeClaim',),
    ),
    (
        queued("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims." + USELESS),
        "ClaimNotBound",
        ("unbound immediate", "StorageClass"),
    ),
    (
        queued("0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind." + USELESS),
        "ClaimNotBound",
        (),
    ),
    (queued("the queue of this team is full"), "Unschedulable", ("1 pod finds no node: the queue of this team",)),
    (queued("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"), "SchedulingGated", ()),
    (
        waits("ImagePullBackOff", 'Back-off pulling image "nope:1": ErrImagePull: not found', name="fetch"),
        "ImagePullFailed",
        ('pod chat-x-1: ImagePullBackOff: container fetch: Back-off pulling image "nope:1"', "spec.engine.image"),
    ),
    (
        waits("ErrImageNeverPull", 'Container image "nope:1" is not present with pull policy of Never'),
        "ImagePullFailed",
        (),
    ),
    (waits("InvalidImageName", 'Failed to apply default image tag "A:": couldn\'t parse'), "ImagePullFailed", ()),
    (waits("CreateContainerConfigError", 'secret "hub" not found'), "SecretNotFound", ('secret "hub" not found',)),
    (
        waits("CreateContainerConfigError", "couldn't find key token in Secret team/hub"),
        "SecretNotFound",
        ("key token",),
    ),
    (
        waits("CreateContainerConfigError", 'secret "hub" not found', {"exitCode": 1, "message": "before"}),
        "SecretNotFound",
        ('secret "hub" not found',),
    ),
    (waits("CreateContainerConfigError", 'configmap "proxy" not found'), "ConfigMapNotFound", ()),
    (creating("FailedMount", MOUNT + 'secret "cert" not found'), "SecretNotFound", ("FailedMount: Mount",)),
    (creating("FailedMount", MOUNT + 'configmap "proxy" not found'), "ConfigMapNotFound", ()),
    (creating("FailedMount", MOUNT + "mount failed: exit status 32"), "VolumeNotMounted", ("spec.pod.volumes",)),
    (creating("FailedAttachVolume", "Multi-Attach error for volume"), "VolumeNotMounted", ("Multi-Attach",)),
    (creating("FailedResourceClaimCreation", 'template "a" not found'), "ResourceClaimNotCreated", ("template",)),
    (creating("FailedPrepareDynamicResources", "DRA driver x is not registered"), "DevicesNotPrepared", ("driver x",)),
    (creating("FailedCreatePodSandBox", 'no runtime for "gvisor"'), "SandboxNotCreated", ("runtimeClassName",)),
    (
        waits("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
        "ContainerConfigInvalid",
        ("will run as root",),
    ),
    (
        crashed(128, 'exec: "slipway-fetcher": executable file not found in $PATH', "StartError", "fetch"),
        "ContainerStartFailed",
        ("executable file not found", "spec.engine.image must have"),
    ),
    (
        crashed(137, reason="OOMKilled"),
        "OOMKilled",
        ("pod chat-x-1: OOMKilled: container server ended: out of memory, exit code 137", "spec.resources.memory"),
    ),
    (
        crashed(65, f"hf://o/m has sha256:{'1' * 64}; the revision is pinned to sha256:{'2' * 64}.", name="fetch"),
        "WeightsDiffer",
        ("1" * 64, "2" * 64, "spec.model"),
    ),
    (
        crashed(65, f"file:///m has sha256:{'1' * 64}; spec.model.revision is sha256:{'2' * 64}.", name="fetch"),
        "WeightsDiffer",
        ("1" * 64, "2" * 64, "change spec.model"),
    ),
    (
        crashed(66, "There is no room for the model: 9 bytes more are needed, 5 are free.", name="fetch"),
        "StorageTooSmall",
        ("9 bytes more", "spec.resources.storage"),
    ),
    (
        crashed(66, "There is no room for the model in the cache: it has 9 bytes, the cache takes 5", name="fetch"),
        "ModelCacheUnavailable",
        ("the cache takes 5", "write none for spec.model.cache"),
    ),
    (
        crashed(66, "The model cache cannot be used: Permission denied", name="lease"),
        "ModelCacheUnavailable",
        ("Permission denied",),
    ),
    (crashed(66, FETCH_404, name="fetch"), "ModelNotFetched", ("answered 404 Not Found (exit code 66)", "model.uri")),
    (
        crashed(65, "model.safetensors is 10 bytes long, its header says 20: the file is truncated.", name="fetch"),
        "ModelNotLoaded",
        ("the file is truncated (exit code 65)",),
    ),
    (crashed(65, "chat lacks 3 weights of its architecture, first lm_head."), "ModelNotLoaded", ()),
    (
        crashed(2, "slipway-server: unrecognized arguments: --fast"),
        "InvalidArguments",
        ("unrecognized arguments: --fast", "spec.engine.args"),
    ),
    (crashed(1, TRACE), "ContainerCrashed", ("container server: RuntimeError: no more threads (exit code 1)",)),
    (
        crashed(139, '{"level": "error", "msg": "the engine stalled"}\n'),
        "ContainerCrashed",
        ("the engine stalled (exit",),
    ),
    (
        crashed(139, '{"level": "error", "message": "a server of another make"}\n'),
        "ContainerCrashed",
        ("a server of another make (exit",),
    ),
    (
        ended("Evicted", "The node was low on resource: memory."),
        "Evicted",
        ("low on resource: memory",),
    ),
    (ended("OutOfcpu", "Node didn't have enough resource: cpu"), "PodFailed", ("OutOfcpu: Node didn't have",)),
    (waits("PostStartHookError", "exited with 1"), "PodFailed", ("PostStartHookError",)),
    (pod_with({"name": "server", "state": {"running": {}}}), "PodsNotReady", ("its readiness probe does not pass",)),
]  # fmt: skip


@pytest.mark.parametrize(("found", "reason", "words"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)])
def test_cause(found: Cause, reason: str, words: tuple[str, ...]) -> None:
    assert found.reason == reason, found
    assert not [word for word in words if word not in found.message], found.message


def test_every_rule_has_a_case_and_a_section_for_who_is_on_call() -> None:
    assert {reason for _, reason, _ in CASES} == {rule.reason for rule in causes.RULES}
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert re.findall(r"^#### (\w+)$", page, re.MULTILINE) == list(causes.REASONS)


def test_no_trouble_has_no_cause() -> None:
    assert causes.of_workload(Workload("x", 1, 1, 0), ASKED) is None


def test_a_sentence_without_numbers_is_passed_on() -> None:
    assert scheduling.sentence("", 2, ASKED) == "2 pods find no node: the scheduler gives no reason"


def test_canary_in_trouble_has_one_event_and_stable_serves_on() -> None:
    world = healthy(replicas=2)
    assert world.parsed().reason is None
    world.edit(model=model("v2"))
    world.broken = {"file:///models/v2"}
    world.run(5)
    condition = next(item for item in world.parsed().conditions if item.type == "CanaryHealthy")
    assert (condition.status, condition.reason, world.parsed().reason) == (
        "False",
        "ContainerCrashed",
        condition.reason,
    )
    assert f"stable {world.parsed().stable_revision} serves on with 2 of 2 pods" in condition.message
    world.run_until("Aborted")
    assert world.parsed().reason == "ProgressDeadlineExceeded"
    assert [event.message.split(":")[0] for event in world.events if event.reason == "PodsFailing"] == [
        "ContainerCrashed"
    ]
    assert "CanaryHealthy" not in [item.type for item in world.parsed().conditions]


def test_where_nothing_is_wrong_the_reason_is_where_the_rollout_is() -> None:
    world = healthy()
    world.edit(model=model("v2"))
    world.run_until("Paused")
    conditions = {item.type: (item.status, item.reason) for item in world.parsed().conditions}
    assert (world.parsed().reason, conditions["CanaryHealthy"]) == ("Paused", ("True", "AsExpected"))
