"""spec.resources and spec.placement: what model pods take from a node, and the nodes that they may run on.

Fields of a placement have the names and the meaning of a PodSpec.

Left out on purpose: fields that give a pod power over other workloads (priorityClassName, runtimeClassName,
schedulerName, serviceAccountName), and tolerations of the taints by which Kubernetes protects itself.
"""

from typing import Annotated, Literal

from pydantic import Field

from slipway_operator.api.markers import CelRule, rule
from slipway_operator.api.types import ApiType, Int32, Int64, IntOrString

_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = f"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}"
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=f"^{_KEY}$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=f"^({_NAME})?$")]
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


class Accelerator(ApiType):
    """Devices of a pod."""

    resource: Annotated[
        str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    ] = "nvidia.com/gpu"
    """Name of the extended resource."""
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
    """Space on the node's disk for the files of an hf:// or https:// model, for example 200Gi. An archive needs twice
    its size. Default is 64Gi, none of which is requested from the node."""
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
