"""spec.resources, spec.placement and spec.pod: what pods take from a node, which nodes they run on, other pod fields.

The names and the meaning are those of a PodSpec. What gives a pod power over other workloads is in spec.pod: an
administrator allows it by namespace (`model/deployment/admin_policy.py`). Tolerations of the taints by which Kubernetes
protects itself are left out on purpose.
"""

from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import CelRule, ListMap, implied_defaults, rule
from slipway_contracts.api.types import ApiType, Int32, Int64, IntOrString
from slipway_operator.api.inputs.model import ObjectName

_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = f"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}"
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=f"^{_KEY}$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=f"^({_NAME})?$")]
VolumeName = Annotated[str, Field(min_length=1, max_length=50, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_OWN_LABELS = "^([a-z0-9-]+[.])*slipway[.]dev/|^app[.]kubernetes[.]io/"
_POSITIVE = "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))"


@rule(
    "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
    "tolerationSeconds of a toleration goes with effect NoExecute only: write that effect, or remove tolerationSeconds",
)
@rule(
    "!has(self.value) || self.operator == 'Equal'",
    "a toleration with operator Exists has no value: remove it, or write operator Equal",
)
class Toleration(ApiType):
    """Taint that pods tolerate."""

    key: Annotated[
        LabelKey,
        CelRule(
            "!self.startsWith('node-role.kubernetes.io/') && !self.startsWith('node.kubernetes.io/')",
            "a toleration in spec.placement names a taint of your own nodes, for example nvidia.com/gpu: taints of "
            "node-role.kubernetes.io and node.kubernetes.io are not tolerated",
        ),
    ]
    """Key of the taint. It is required: a toleration of all taints would also cover those of control-plane nodes."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Comparison with the taint: its value is equal, or the taint exists with any value."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. If omitted, all effects."""
    toleration_seconds: Annotated[Int64, Field(ge=0)] | None = None
    """Time in seconds that a pod stays on a node after the taint appears. If omitted, for ever."""


@rule(
    "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : "
    "(self.operator in ['Gt', 'Lt'] ? has(self.values) && self.values.size() == 1 && "
    "self.values.all(v, v.matches('^[0-9]+$')) : !has(self.values) || self.values.size() == 0)",
    "values of a node requirement: at least one for In and NotIn, one whole number for Gt and Lt, none for Exists and "
    "DoesNotExist",
)
class NodeSelectorRequirement(ApiType):
    """Requirement on a label of a node."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """Relation between the label and the values."""
    values: Annotated[
        tuple[Annotated[LabelValue, Field(description="Value of the label.")], ...], Field(max_length=32)
    ] = ()
    """Values of the label."""


class NodeSelectorTerm(ApiType):
    """Requirements on one node. All must match."""

    match_expressions: Annotated[tuple[NodeSelectorRequirement, ...], Field(min_length=1, max_length=16)]
    """Requirements on the labels of the node."""


class NodeSelector(ApiType):
    """Nodes that pods may run on."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=8)]
    """Terms. A node must match one of them."""


class PreferredSchedulingTerm(ApiType):
    """Nodes that are preferred."""

    weight: Annotated[Int32, Field(ge=1, le=100)]
    """Weight of the preference."""
    preference: NodeSelectorTerm


class NodeAffinity(ApiType):
    """Affinity to nodes, by their labels."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredSchedulingTerm, ...], Field(max_length=8)
    ] = ()
    """Preferences. The scheduler adds the weights of those that a node matches."""


class Affinity(ApiType):
    """Affinity of pods."""

    node_affinity: NodeAffinity | None = None


class TopologySpreadConstraint(ApiType):
    """Spread of the pods of a revision over zones, nodes or other domains. The operator adds the label selector."""

    max_skew: Annotated[Int32, Field(ge=1, le=10000)]
    """Largest difference between the numbers of pods in two domains."""
    topology_key: LabelKey
    """Label of nodes whose values are the domains, for example topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Whether a pod that would break the limit waits, or is scheduled with lower preference for such a node."""


class Placement(ApiType):
    """Nodes that model pods may run on. A change creates a new revision."""

    node_selector: Annotated[
        dict[
            Annotated[str, Field(max_length=317, pattern=f"^{_KEY}$")],
            Annotated[LabelValue, Field(description="Value of the label.")],
        ],
        Field(max_length=32),
        CelRule(
            f"self.all(k, k.size() <= 317 && k.matches('^{_KEY}$'))",
            "a key of spec.placement.nodeSelector is no label: write for example nvidia.com/gpu.product",
        ),
    ] = Field(default_factory=dict)
    """Labels of the nodes. All must match."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints that pods tolerate. Kubernetes adds a toleration of the accelerator's own taint only with its
    ExtendedResourceToleration plug-in."""
    affinity: Affinity | None = None
    topology_spread_constraints: Annotated[tuple[TopologySpreadConstraint, ...], Field(max_length=8)] = ()
    """Spread of the pods of a revision. If omitted, the scheduler's default applies, which prefers different nodes and
    zones."""


_MIG = "nvidia.com/mig-"
# Written as GPU instances are named: 1g.10gb, 1g.10gb.me for one with media extensions, 1c.2g.20gb for a part of one.
_MIG_PROFILE = "^nvidia[.]com/mig-([1-7]c[.])?[1-7]g[.][1-9][0-9]{0,3}gb([.][a-z]+)*$"


@rule(
    "!has(self.type) || !has(self.resource) || self.resource == 'nvidia.com/gpu'",
    "spec.resources.accelerator has either type or resource: remove resource, because the type determines it",
)
@rule(
    "!has(self.resourceClaimTemplateName) || (!has(self.type) && "
    "(!has(self.resource) || self.resource == 'nvidia.com/gpu'))",
    "spec.resources.accelerator has either resourceClaimTemplateName, or type or resource: remove those, because the "
    "template determines the devices",
)
@rule(
    "!has(self.resourceClaimName) || (!has(self.resourceClaimTemplateName) && !has(self.type) && "
    "(!has(self.resource) || self.resource == 'nvidia.com/gpu'))",
    "spec.resources.accelerator has either resourceClaimName, or resourceClaimTemplateName, type or resource: remove "
    "those, because the claim determines the devices",
)
@rule(
    "!(has(self.memory) || has(self.sharing)) || (!has(self.resourceClaimName) && "
    "!has(self.resourceClaimTemplateName))",
    "spec.resources.accelerator.memory and sharing do not go with a ResourceClaim: remove them, and write them into "
    "the claim, which determines the devices",
)
@rule(
    "!(has(self.memory) || has(self.sharing)) || has(self.type) || !has(self.resource) || "
    "self.resource.startsWith('nvidia.com/')",
    "spec.resources.accelerator.memory and sharing select nodes by labels of NVIDIA's: remove them, or write type",
)
@rule(
    f"!has(self.resource) || !self.resource.startsWith('{_MIG}') || self.resource.matches('{_MIG_PROFILE}')",
    "spec.resources.accelerator.resource names no MIG profile: write for example nvidia.com/mig-1g.10gb, as "
    "`kubectl describe node` shows it",
)
@rule(
    f"!has(self.memory) || !has(self.resource) || !self.resource.matches('{_MIG_PROFILE}') || "
    "!isQuantity(string(self.memory)) || !quantity(string(self.memory)).isGreaterThan("
    "quantity(self.resource.split('g.')[1].split('gb')[0] + 'G'))",
    "spec.resources.accelerator.memory is more than the MIG profile in resource has: write a larger profile, or less "
    "memory",
)
@rule(
    f"!has(self.sharing) || self.sharing != 'MPS' || !has(self.resource) || !self.resource.startsWith('{_MIG}')",
    "spec.resources.accelerator.sharing: MPS is not for MIG devices: write TimeSlicing, or another resource",
)
@rule(
    "!has(self.sharing) || self.count <= 1",
    "spec.resources.accelerator.count must be 1 with sharing: a second share may be of the same device, and gives no "
    "more of it",
)
@implied_defaults()
class Accelerator(ApiType):
    """Devices of a pod."""

    type: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] | None = None
    """Type of the device, for example h100. It determines the resource, the nodes by their labels, and the toleration
    of the accelerator's taint. docs/placement.md lists the types; an administrator can add more. If omitted, the nodes
    are those that have the resource."""
    resource: Annotated[
        str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    ] = "nvidia.com/gpu"
    """Name of the extended resource."""
    resource_claim_template_name: ObjectName | None = None
    """Name of a ResourceClaimTemplate in the namespace, in place of an extended resource: each pod gets a claim of its
    own. The cluster needs a driver of the device, and Kubernetes 1.34, or 1.32 with the feature gate
    DynamicResourceAllocation. count is the number of devices in a claim."""
    resource_claim_name: ObjectName | None = None
    """Name of a ResourceClaim in the namespace, which all pods share, those of other deployments that name it too. They
    run on the node with its devices."""
    memory: (
        Annotated[
            IntOrString,
            CelRule(
                f"{_POSITIVE} && !quantity(string(self)).isGreaterThan(quantity('2Ti'))",
                "spec.resources.accelerator.memory must be a positive quantity of at most 2Ti: write for example 20Gi",
            ),
        ]
        | None
    ) = None
    """Memory that a pod needs on each device, for example 20Gi. Without type, pods run on nodes whose devices have as
    much by their labels. A MIG profile or a type with less is refused. It reserves nothing on a shared device."""
    sharing: Literal["TimeSlicing", "MPS"] | None = None
    """How pods share a device that the administrator has divided: the nodes are those whose devices are shared in this
    way. If omitted, both shared and whole devices may be used."""
    count: Annotated[
        Int32,
        Field(ge=1),
        CelRule("self <= 16", "spec.resources.accelerator.count must be at most 16: a pod runs on one machine"),
    ]
    """Number of devices of a pod. vllm and sglang split the model over them (tensor parallelism); slipway-server runs a
    model on one."""


class ResourcesSpec(ApiType):
    """Resources of a model pod. A change creates a new revision."""

    cpu: (
        Annotated[
            IntOrString,
            CelRule(_POSITIVE, "spec.resources.cpu must be a positive quantity: write for example 4 or 500m"),
        ]
        | None
    ) = None
    """Number of CPU cores, as request and limit, for example 4 or 500m."""
    memory: (
        Annotated[
            IntOrString, CelRule(_POSITIVE, "spec.resources.memory must be a positive quantity: write for example 24Gi")
        ]
        | None
    ) = None
    """Memory, as request and limit, for example 24Gi."""
    storage: (
        Annotated[
            IntOrString,
            CelRule(
                f"{_POSITIVE} && !quantity(string(self)).isGreaterThan(quantity('64Ti'))",
                "spec.resources.storage must be a positive quantity of at most 64Ti: write for example 200Gi",
            ),
        ]
        | None
    ) = None
    """Space on the node's disk for the files of a model that is downloaded, for example 200Gi. An archive needs twice
    its size, an image the size of its largest layer more. Default is 64Gi, none of which is requested from the node."""
    accelerator: Accelerator | None = None
    shared_memory: (
        Annotated[
            IntOrString,
            CelRule(_POSITIVE, "spec.resources.sharedMemory must be a positive quantity: write for example 8Gi"),
        ]
        | None
    ) = None
    """Size of /dev/shm, for example 8Gi. It counts as memory of the pod. Default is 64Mi for slipway and custom, 1Gi
    for vllm and sglang, and 8Gi for them with several devices."""


class SecretVolume(ApiType):
    """Files of a Secret."""

    secret_name: ObjectName
    """Name of the Secret."""


class ConfigMapVolume(ApiType):
    """Files of a ConfigMap."""

    name: ObjectName
    """Name of the ConfigMap."""


class ClaimVolume(ApiType):
    """PersistentVolumeClaim."""

    claim_name: ObjectName
    """Name of the claim."""
    read_only: bool = False
    """Whether the claim is mounted read-only."""


class EmptyDirVolume(ApiType):
    """Empty directory of the pod."""

    medium: Literal["", "Memory"] = ""
    """Memory for a tmpfs, which counts as memory of the pod; otherwise the node's disk."""
    size_limit: Annotated[str, Field(max_length=20, pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)?$")]
    """Maximum size, for example 10Gi. A pod that writes more is evicted."""


@rule(
    "(has(self.secret) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.persistentVolumeClaim) ? 1 : 0) + "
    "(has(self.emptyDir) ? 1 : 0) == 1",
    "a volume in spec.pod.volumes has one source: write secret, configMap, persistentVolumeClaim or emptyDir",
)
class PodVolume(ApiType):
    """Volume of the pod. Sources are in the same namespace; hostPath and other sources are not possible."""

    name: VolumeName
    """Name of the volume, for spec.engine.volumeMounts."""
    secret: SecretVolume | None = None
    config_map: ConfigMapVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None
    empty_dir: EmptyDirVolume | None = None


class VolumeMount(ApiType):
    """Mount of a volume in the engine's container."""

    name: VolumeName
    """Name of the volume in spec.pod.volumes."""
    mount_path: Annotated[
        str,
        Field(min_length=2, max_length=512, pattern=r"^/[-A-Za-z0-9._/]+$"),
        CelRule(
            "!self.contains('..') && !self.contains('//') && !self.endsWith('/')",
            "mountPath in spec.engine.volumeMounts must be a plain path: write for example /data",
        ),
        CelRule(
            "!self.matches('^/(tmp|dev|proc|sys|bin|lib|lib64|usr|etc|run|var|var/run|mnt)$') && "
            "!self.matches('^/(dev|proc|sys|mnt/models|mnt/pvc|etc/slipway|run/secrets|var/run/secrets)(/|$)')",
            "mountPath in spec.engine.volumeMounts is a directory of the operator or the system: write for example "
            "/data or /tmp/cache",
        ),
    ]
    """Path in the container."""
    sub_path: (
        Annotated[
            str,
            Field(min_length=1, max_length=512, pattern=r"^[-A-Za-z0-9._][-A-Za-z0-9._/]*$"),
            CelRule("!self.contains('..')", "subPath in spec.engine.volumeMounts must not contain '..': remove it"),
        ]
        | None
    ) = None
    """Path in the volume. Default is its root."""
    read_only: bool = False
    """Whether the engine can only read."""


class ConfigReference(ApiType):
    """Reference to an object in the same namespace."""

    name: ObjectName
    """Name of the object."""


@rule(
    "has(self.secretRef) != has(self.configMapRef)",
    "a source in spec.engine.envFrom has either secretRef or configMapRef: write one of them",
)
class EnvFromSource(ApiType):
    """All keys of a Secret or a ConfigMap as environment variables of the engine."""

    prefix: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Beginning of the variables' names."""
    secret_ref: ConfigReference | None = None
    config_map_ref: ConfigReference | None = None


class PodFields(ApiType):
    """Further fields of model pods. A change creates a new revision. All of them but volumes must be allowed for the
    namespace by an administrator, in podPolicy of the chart's values."""

    labels: Annotated[
        dict[
            Annotated[str, Field(max_length=317, pattern=f"^{_KEY}$")],
            Annotated[LabelValue, Field(description="Value of the label.")],
        ],
        Field(max_length=32),
        CelRule(
            f"self.all(k, k.size() <= 317 && k.matches('^{_KEY}$') && !k.matches('{_OWN_LABELS}'))",
            "a key of spec.pod.labels is no label, or one of the operator: write for example team or "
            "kueue.x-k8s.io/queue-name",
        ),
    ] = Field(default_factory=dict)
    """Labels of the pods."""
    annotations: Annotated[
        dict[
            Annotated[str, Field(max_length=317, pattern=f"^{_KEY}$")],
            Annotated[str, Field(max_length=4096, description="Value of the annotation.")],
        ],
        Field(max_length=32),
        CelRule(
            f"self.all(k, k.size() <= 317 && k.matches('^{_KEY}$') && !k.matches('{_OWN_LABELS}'))",
            "a key of spec.pod.annotations is no annotation, or one of the operator: write for example "
            "prometheus.io/scrape",
        ),
    ] = Field(default_factory=dict)
    """Annotations of the pods."""
    service_account_name: ObjectName | None = None
    """ServiceAccount of the pods, for example with access to a bucket. Its token is not mounted."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, for example nvidia."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods."""
    volumes: Annotated[tuple[PodVolume, ...], Field(max_length=16), ListMap("name")] = ()
    """Volumes. spec.engine.volumeMounts mounts them."""
