"""ModelPool: pods that serve many classic models, each of them a ModelDeployment with spec.pool."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import AtMost, CelRule, Definition, ListMap, PrinterColumn, custom_resource, rule
from slipway_contracts.api.types import ApiType, Int32, Int64, IntOrString, strict
from slipway_operator.api.inputs.model import ObjectName
from slipway_operator.api.inputs.pod_inputs import BatchingSpec, LocalObjectReference
from slipway_operator.api.inputs.pod_spec import Placement, ResourcesSpec
from slipway_operator.api.v1alpha1.status import Condition, Word


class PoolSecretRef(ApiType):
    """Secret in the same namespace with credentials of the models' sources, for the container that downloads alone.
    Keys are those of spec.model.secretRef of a ModelDeployment, HF_TOKEN, and .dockerconfigjson; each is optional."""

    name: ObjectName
    """Name of the Secret."""


class PoolLimitsSpec(ApiType):
    """How many models are in memory, and for how long. Defaults are those of slipway-server."""

    memory: (
        Annotated[
            IntOrString,
            CelRule(
                "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && "
                "!quantity(string(self)).isGreaterThan(quantity('64Ti'))",
                "spec.limits.memory must be a positive quantity of at most 64Ti: write for example 4Gi",
            ),
        ]
        | None
    ) = None
    """Memory of all models of a pod together. Default is 80 % of what is free when the pod starts."""
    max_loaded: Annotated[Int32, Field(ge=1, le=256)] | None = None
    """Models in memory at a time. Default is 32."""
    min_residency_seconds: Annotated[Int32, Field(ge=0, le=86400)] | None = None
    """Time in seconds that a model stays in memory before it may be evicted for another one. Default is 10."""
    load_timeout_seconds: Annotated[Int32, Field(ge=1, le=3600)] | None = None
    """Time in seconds that a request waits until its model is loaded; then it gets status 503. Default is 30."""
    max_load_seconds: Annotated[Int32, Field(ge=1, le=3600)] | None = None
    """Time in seconds that a model may take to load. Default is 120."""
    parallel_loads: Annotated[Int32, Field(ge=1, le=64)] | None = None
    """Models that load at a time. Default is 2."""
    max_waiting_loads: Annotated[Int32, Field(ge=1, le=256)] | None = None
    """Models that may wait to be loaded; requests for more get status 503. Default is 64."""


@rule(
    "!has(self.resources) || (!has(self.resources.accelerator) && !has(self.resources.sharedMemory))",
    "models of a pool use CPUs: remove spec.resources.accelerator and sharedMemory",
)
class ModelPoolSpec(ApiType):
    """Desired state: the pods of the pool. A change of anything but replicas restarts them one after the other."""

    replicas: Annotated[Int32, Field(ge=0, le=1000)] = 1
    """Number of pods. Each of them can serve each model of the pool."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Image of slipway-server. Default is that of the operator's configuration when the pool is made, which the status
    records: an upgrade of the operator restarts no pool."""
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], Field(max_length=8), ListMap("name")] = ()
    """Secrets in the same namespace with the credentials of the image's registry."""
    resources: ResourcesSpec | None = None
    placement: Placement | None = None
    secret_ref: PoolSecretRef | None = None
    limits: PoolLimitsSpec = PoolLimitsSpec()
    batching: BatchingSpec | None = None
    drain_timeout_seconds: Annotated[Int32, Field(ge=1, le=86400)] = 600
    """Maximum time in seconds that a request in progress may continue when its pod terminates."""


@strict
@dataclass(frozen=True, slots=True)
class PoolEntryStatus:
    """A revision that the pool serves."""

    model: Word
    """Name of the model."""
    revision: Word
    """Revision of the ModelDeployment."""
    model_deployment: Word = ""
    """Name of the ModelDeployment."""
    stable: bool = False
    """Whether it is the stable revision."""
    loaded: Int32 = 0
    """Ready pods that have it in memory."""
    proved: Int32 = 0
    """Ready pods that have, or have had it in memory: a new revision waits for all of them."""
    serving: Int32 = 0
    """Ready pods that serve it, from memory or after they have loaded it."""
    reason: Annotated[str, AtMost(512)] = ""
    """Why a pod does not serve it, or not yet; empty where nothing is wrong."""


@strict
@dataclass(frozen=True, slots=True)
class ModelPoolStatus:
    """State of the pool. The operator writes it."""

    observed_generation: Int64 = 0
    """metadata.generation that the status was computed from."""
    replicas: Int32 = 0
    """Pods that exist."""
    ready: str = ""
    """Ready pods and desired ones."""
    models: Int32 = 0
    """Entries: revisions of ModelDeployments, of which a model has two during a rollout."""
    loaded: Int32 = 0
    """Models in memory, in the pod with the most of them."""
    memory_bytes: Int64 = 0
    """Memory of models, in the pod with the most."""
    memory_limit_bytes: Int64 = 0
    """Memory that models of a pod may have."""
    image: str = ""
    """Image of the pods."""
    entries: Annotated[tuple[PoolEntryStatus, ...], AtMost(256)] = ()
    """The entries of the pool."""
    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = ()
    """Ready: a pod takes requests. Accepted: the spec can be followed, and all members have room in the pool's file.
    Redundant: a pod may end, as in a change of the template or a drain of its node, and another one serves."""


def _shown(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


@rule(
    "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name of a ModelPool has at most 40 characters, begins with a letter and holds only a-z, 0-9 and '-': "
    "names of pods append to it",
)
@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural="modelpools",
        short_names=("mpool",),
        categories=("slipway",),
        columns=(
            PrinterColumn("Ready", "string", ".status.ready", "Ready and desired pods."),
            PrinterColumn("Models", "integer", ".status.models", "Entries of the pool."),
            PrinterColumn("Loaded", "integer", ".status.loaded", "Models in memory."),
            PrinterColumn("Bytes", "integer", ".status.memoryBytes", "Memory of the models."),
            PrinterColumn("Limit", "integer", ".status.memoryLimitBytes", "Memory that they may have."),
            PrinterColumn("Reason", "string", _shown("Ready", "reason"), "Why it is ready, or not."),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
        ),
        status=True,
    )
)
class ModelPool(ApiType):
    """Pods that serve many classic models. ModelDeployments with spec.pool are its members."""

    spec: ModelPoolSpec
    status: ModelPoolStatus | None = None
