"""Why pods of a revision are not ready: reason, pod, message and remedy. The only list of causes; pure.

`docs/status.yaml` has a meaning for each reason and `docs/troubleshooting.md` a section: tests compare both with it.
"""

import re
from dataclasses import dataclass

from slipway_operator.model.adapter_views import ADAPTER_NOT_LOADED, DEPLOYMENT_NOT_READY
from slipway_operator.model.cluster.observed import (
    CREATE_FAILED,
    NOT_READY,
    UNSCHEDULABLE,
    WEIGHTS_DIFFER,
    PodTrouble,
    Workload,
)
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.model.labels import LEADER_WORKER_SET
from slipway_operator.model.pool_views import POOL_NOT_FOUND, POOL_NOT_READY
from slipway_operator.planning.facts import scheduling

PLAIN = "PodsNotReady"  # no cause: pods are starting, or the cause is unknown
OTHER = "PodFailed"  # a cause that no rule matches
CLAIM_NOT_FOUND, CLAIM_NOT_BOUND = "ClaimNotFound", "ClaimNotBound"

# Exit codes of the fetcher and the server; see docs/contracts.md.
USAGE, DATA_ERROR, NO_INPUT = 2, 65, 66


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a revision lacks ready pods."""

    reason: str  # in CamelCase: the reason of a condition
    message: str  # the pod, Kubernetes' own reason and message, and the remedy


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause and its criteria; all that are given must match."""

    reason: str
    advice: str
    words: frozenset[str] = frozenset()  # Kubernetes' own reasons; empty matches any
    pattern: str = ""  # regular expression to find in the message
    exit_code: int | None = None

    def applies(self, word: str, trouble: PodTrouble) -> bool:
        """Whether the trouble, with the reason `word`, has this cause."""
        called = not self.words or word in self.words
        code = self.exit_code is None or trouble.exit_code == self.exit_code
        return called and code and re.search(self.pattern, trouble.message) is not None


_CREATE = frozenset({CREATE_FAILED})
_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONFIG = frozenset({"CreateContainerConfigError"})
_MOUNT = frozenset({"FailedMount", "FailedAttachVolume"})
_START = frozenset({"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"})
_CRASH = frozenset({"CrashLoopBackOff", "Error", "Restarted", "ContainerStatusUnknown"})

_POOL_TROUBLES = {
    POOL_NOT_FOUND: "create that ModelPool, or correct spec.pool.name",
    POOL_NOT_READY: "see `kubectl describe modelpool` of it",
}
_OBJECTS = {**dict.fromkeys(_POOL_TROUBLES, "ModelPool"), DEPLOYMENT_NOT_READY: "ModelDeployment"}
# The first rule that applies names the cause: specific ones come before general ones.
RULES = (
    *(Rule(reason, advice, frozenset({reason})) for reason, advice in _POOL_TROUBLES.items()),
    Rule(
        DEPLOYMENT_NOT_READY,
        "see `kubectl describe modeldeployment` of it",
        frozenset({DEPLOYMENT_NOT_READY}),
    ),
    Rule(
        ADAPTER_NOT_LOADED,
        "correct the files of the adapter or spec.model, or spec.adapters of the ModelDeployment",
        frozenset({ADAPTER_NOT_LOADED}),
    ),
    # No pod can be created: the ReplicaSet has the API server's message.
    Rule(
        "QuotaExceeded",
        "raise that ResourceQuota, or lower spec.resources or spec.replicas",
        _CREATE,
        r"(exceeded|failed|insufficient) quota",
    ),
    Rule(
        "LimitRangeExceeded",
        "bring spec.resources within the LimitRange of the namespace",
        _CREATE,
        r"(maximum|minimum|max) .+ (per|ratio per) (Container|Pod)\b",
    ),
    Rule(
        "PodSecurityViolated",
        "model pods pass the level restricted as they are made: find the webhook or policy that adds this to them",
        _CREATE,
        r"violates PodSecurity",
    ),
    Rule(
        "ServiceAccountNotFound",
        "create that ServiceAccount in the namespace, or correct spec.pod.serviceAccountName",
        _CREATE,
        r"service ?account",
    ),
    Rule(
        "PriorityClassNotFound",
        "create that PriorityClass, or correct spec.pod.priorityClassName",
        _CREATE,
        r"no PriorityClass",
    ),
    Rule(
        "RuntimeClassNotFound",
        "create that RuntimeClass, or correct spec.pod.runtimeClassName",
        _CREATE,
        r"RuntimeClass \S+ not found",
    ),
    Rule(
        "AdmissionDenied",
        "meet that policy, or exempt the namespace from it",
        _CREATE,
        r"denied (the )?request",
    ),
    Rule(
        "WebhookUnavailable",
        "bring that webhook back, or delete its configuration",
        _CREATE,
        r"failed calling webhook",
    ),
    Rule(
        "ImageVolumesUnavailable",
        "this cluster has no image volumes: they need Kubernetes 1.35, or 1.33 with the feature gate ImageVolume; else "
        "write another spec.model.cache",
        _CREATE,
        r"volumes\[[^]]*\](\.image: field not declared|: Required value: must specify a volume type)",
    ),
    Rule("CreateFailed", "allow it, or change the spec", _CREATE),
    # No node takes the pod: `scheduling` returns the reason.
    Rule(
        CLAIM_NOT_FOUND,
        "create that PersistentVolumeClaim, or name another in spec.model.uri or spec.model.cacheClaimName",
        frozenset({scheduling.UNKNOWN}),
        r'persistentvolumeclaim "[^"]*" (not found|is being deleted|bound to non-existent)',
    ),
    Rule(
        CLAIM_NOT_BOUND,
        "see `kubectl describe pvc`: its StorageClass has to provision a volume, or one that fits has to be there",
        frozenset({scheduling.UNKNOWN, scheduling.NO_MATCH}),
        r"unbound immediate PersistentVolumeClaims|find available persistent volumes",
    ),
    Rule(
        scheduling.ON_NO_NODE,
        "add nodes that have it (of a GPU: see that its device plugin runs), or ask for less in spec.resources",
        frozenset({scheduling.ON_NO_NODE}),
    ),
    Rule(
        scheduling.TOO_LITTLE_FREE,
        "free some or add nodes, or ask for less in spec.resources",
        frozenset({scheduling.TOO_LITTLE_FREE}),
    ),
    Rule(
        scheduling.NO_MATCH,
        "label, untaint or uncordon a node, or correct spec.placement or the volume that keeps the pod from it",
        frozenset({scheduling.NO_MATCH}),
    ),
    Rule(scheduling.UNKNOWN, "see `kubectl describe pod`", frozenset({scheduling.UNKNOWN})),
    Rule("SchedulingGated", "see who holds the pod back: `kubectl get pod -o yaml`", frozenset({"SchedulingGated"})),
    # The pod has a node, and a container cannot start.
    Rule(
        "ImagePullFailed",
        "name an image in spec.engine.image that the nodes have or may pull (or in spec.model.uri, with cache: image); "
        "credentials of its registry go into spec.engine.imagePullSecrets",
        _IMAGE,
    ),
    Rule("SecretNotFound", "create that Secret or key in the namespace", _CONFIG | _MOUNT, r"(?i)\bsecret\b"),
    Rule("ConfigMapNotFound", "create that ConfigMap or key in the namespace", _CONFIG | _MOUNT, r"(?i)\bconfigmap\b"),
    Rule(
        "VolumeNotMounted",
        "correct the volume in spec.pod.volumes or spec.model.uri, or see that the node can reach its storage",
        _MOUNT,
    ),
    Rule(
        "ResourceClaimNotCreated",
        "create that ResourceClaimTemplate, or correct spec.resources.accelerator.resourceClaimTemplateName",
        frozenset({"FailedResourceClaimCreation"}),
    ),
    Rule(
        "DevicesNotPrepared",
        "see that the driver of the claimed devices runs on the node",
        frozenset({"FailedPrepareDynamicResources"}),
    ),
    Rule(
        "SandboxNotCreated",
        "see that the network plug-in of the node works, and the node has the runtime of spec.pod.runtimeClassName",
        frozenset({"FailedCreatePodSandBox"}),
    ),
    Rule("ContainerConfigInvalid", "see `kubectl describe pod`", _CONFIG),
    Rule(
        "ContainerStartFailed",
        "spec.engine.image must have the command of its engine type (slipway-fetcher and slipway-server for slipway), "
        "for the processor of the nodes",
        _START,
    ),
    # A container started and ended.
    Rule("OOMKilled", "raise spec.resources.memory, or serve a smaller or quantized model", frozenset({"OOMKilled"})),
    Rule(
        WEIGHTS_DIFFER,
        "publish again what it is pinned to; or change spec.model, which makes a new revision of what is there now",
        _CRASH | {WEIGHTS_DIFFER},
        r"; (the revision is pinned to|spec\.model\.revision is) sha256:",
    ),
    Rule(
        "ModelCacheUnavailable",
        "correct what the message names, or write none for spec.model.cache",
        _CRASH,
        r"^container (lease|fetch): .*(model cache|model in the cache|container `lease` of this pod)",
        NO_INPUT,
    ),
    Rule(
        "StorageTooSmall",
        "raise spec.resources.storage, or serve a smaller model",
        _CRASH,
        r"^container fetch: (There is no room for the model|.* has \d+ bytes; the limit is )",
    ),
    Rule(
        "ModelNotFetched",
        "correct spec.model.uri, or see that the pod can reach what it names",
        _CRASH,
        r"^container fetch\b",
        NO_INPUT,
    ),
    Rule("ModelNotLoaded", "correct the files of the model, or serve another", _CRASH, "", DATA_ERROR),
    Rule("InvalidArguments", "correct spec.engine.args and spec.engine.env", _CRASH, "", USAGE),
    Rule("ContainerCrashed", "see `kubectl logs --previous`", _CRASH),
    Rule("Evicted", "see what the node ran short of; set spec.resources to what the pod needs", frozenset({"Evicted"})),
    Rule(PLAIN, "", frozenset({NOT_READY})),
    Rule(OTHER, "see `kubectl describe pod`"),
)
REASONS = tuple(rule.reason for rule in RULES if rule.reason != PLAIN)
# Causes of pods without a node, and among them those that another or emptier node would not solve.
UNPLACED = frozenset(
    {
        CLAIM_NOT_FOUND,
        CLAIM_NOT_BOUND,
        scheduling.ON_NO_NODE,
        scheduling.TOO_LITTLE_FREE,
        scheduling.NO_MATCH,
        scheduling.UNKNOWN,
    }
)
UNBOUND = frozenset({CLAIM_NOT_FOUND, CLAIM_NOT_BOUND})


def of_workload(workload: Workload, resources: Resources) -> Cause | None:
    """The most important cause among the troubles of a revision's pods; `resources` are those of each pod."""
    if not workload.troubles:
        return None
    first = workload.troubles[0]
    if first.reason == UNSCHEDULABLE:
        return _cause(first, scheduling.sentence(first.message, max(1, workload.unschedulable), resources))
    maker = "ReplicaSet" if workload.kind != LEADER_WORKER_SET else LEADER_WORKER_SET
    where = maker if first.reason == CREATE_FAILED else _OBJECTS.get(first.reason, "pod")
    words = f"{first.reason}: {first.message}" if first.message else first.reason
    return _cause(first, f"{where} {first.pod}: {words}")


def of_refusal(message: str) -> Cause:
    """The cause for a child that the API server refused to create."""
    return _cause(PodTrouble("", CREATE_FAILED, message), message)


def _cause(trouble: PodTrouble, message: str) -> Cause:
    word = scheduling.read(trouble.message).reason if trouble.reason == UNSCHEDULABLE else trouble.reason
    rule = next(rule for rule in RULES if rule.applies(word, trouble))
    return Cause(rule.reason, f"{message}; {rule.advice}" if rule.advice else message)
