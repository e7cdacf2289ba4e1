"""ModelAdapter: a LoRA adapter that the pods of a ModelDeployment serve, and the rollout of its new versions."""

from typing import Annotated

from pydantic import Field

from slipway_contracts.adapters import PLURAL
from slipway_contracts.api.markers import CelRule, Definition, PrinterColumn, custom_resource, implied_defaults, rule
from slipway_contracts.api.types import ApiType, Int32
from slipway_operator.api.inputs.model import ModelName, ModelUri, ModelVersion, ObjectStoreSpec
from slipway_operator.api.v1alpha1.model_deployment import RollbackWindow, RolloutIntents, RunHistoryLimits
from slipway_operator.api.v1alpha1.status import PatchedStatus
from slipway_operator.api.v1alpha1.strategy import RolloutStrategy

_DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


class DeploymentReference(ApiType):
    """ModelDeployment of the same namespace whose pods serve the adapter. It has spec.adapters."""

    name: Annotated[str, Field(min_length=1, max_length=52, pattern=_DNS_LABEL)]
    """Name of the ModelDeployment."""


_STORE = "self.uri.matches('^(s3|gs|az)://')"


@rule(
    f"!has(self.objectStore) || {_STORE}",
    "spec.model.objectStore goes with s3://, gs:// and az:// only: remove it, or use a uri like s3://bucket/adapter",
)
@rule(
    "!has(self.objectStore) || !has(self.objectStore.region) || self.uri.startsWith('s3://')",
    "spec.model.objectStore.region is for s3:// only: remove it",
)
@rule(
    "!has(self.objectStore) || !has(self.objectStore.account) || self.uri.startsWith('az://')",
    "spec.model.objectStore.account is for az:// only: remove it",
)
@rule(
    "!has(self.revision) || !self.uri.startsWith('oci://')",
    "spec.model.revision does not go with oci://: write the tag or the digest into spec.model.uri, for example "
    "oci://registry/repository:v1",
)
@rule(
    "!has(self.revision) || self.uri.matches('^(hf|oci)://') || self.revision.matches('^sha256:[0-9a-f]{64}$')",
    "spec.model.revision of an https://, s3://, gs://, az:// or file:// adapter is its digest: write sha256: and 64 "
    "hexadecimal digits in lower case",
)
@rule(
    "!has(self.revision) || !self.uri.startsWith('hf://') || !self.revision.startsWith('sha256:')",
    "spec.model.revision of an hf:// adapter is a branch, a tag or a commit: write for example main, or the commit's "
    "40 digits",
)
@rule(
    "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
    "spec.model.name cannot change, because clients send it: create a second ModelAdapter with the new name and move "
    "them over",
)
class AdapterModelSpec(ApiType):
    """Adapter and the name under which it is served. A change creates a new revision and starts a rollout."""

    uri: Annotated[
        ModelUri,
        CelRule(
            "!self.startsWith('models:')",
            "spec.model.uri of a ModelAdapter is no models:/ URI: write the location of its files",
        ),
        CelRule(
            "!self.startsWith('pvc://')",
            "the pods of the ModelDeployment download adapters: spec.model.uri of a ModelAdapter is no pvc://",
        ),
    ]
    """Location of the adapter, in peft's format with safetensors: hf://org/adapter, https://host/adapter.tar,
    s3://bucket/folder, gs://bucket/folder, az://container/folder, oci://registry/repository:tag, or file:///path inside
    the server image. Credentials are those of spec.adapters.secretRef of the ModelDeployment."""
    object_store: ObjectStoreSpec | None = None
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Branch, tag or commit of an hf:// repository; sha256: and a digest for the others. What the first pod loaded is
    recorded with the revision, and all others load exactly that."""
    name: ModelName | None = None
    """Name that clients send as "model". Default is metadata.name. It cannot be changed. The first ModelDeployment or
    ModelAdapter to claim a name owns it; NAMESPACE/NAME.adapter always works."""
    version: ModelVersion | None = None
    """Human-readable version; responses contain it as model_version. Default is the hash of the revision."""


class AdapterRecord(ApiType):
    """What is kept with each revision of an adapter."""

    model: AdapterModelSpec
    base: str


@rule(
    "!has(self.strategy) || (!has(self.strategy.capacity) && (!has(self.strategy.canary) || "
    "(!has(self.strategy.canary.baselinePod) && !has(self.strategy.canary.replicaProgressThreshold) && "
    "(!has(self.strategy.canary.steps) || !self.strategy.canary.steps.exists(step, has(step.setCanaryScale))))) && "
    "(!has(self.strategy.blueGreen) || (!has(self.strategy.blueGreen.previewReplicaCount) && "
    "!has(self.strategy.blueGreen.replicaProgressThreshold))))",
    "an adapter has no pods of its own: remove capacity, baselinePod, setCanaryScale, previewReplicaCount and "
    "replicaProgressThreshold from spec.strategy; a twinShadow needs no baselinePod",
)
@implied_defaults()
class ModelAdapterSpec(ApiType):
    """Desired state: the adapter, the ModelDeployment whose pods serve it, and the rollout of new versions."""

    deployment_ref: Annotated[
        DeploymentReference,
        CelRule(
            "self.name == oldSelf.name",
            "spec.deploymentRef cannot change, because clients are routed by it: create a second ModelAdapter",
        ),
    ]
    model: AdapterModelSpec
    strategy: RolloutStrategy | None = None
    """Strategy of the rollout of a new version. If omitted, it is the one of the ModelDeployment, without what concerns
    its pods."""
    paused: bool = False
    """When true, the rollout makes no progress. Abort still works."""
    progress_deadline_seconds: Annotated[Int32, Field(ge=5, le=86400)] = 600
    """Maximum time in seconds until all ready pods of the ModelDeployment have loaded a version. After that the version
    is rejected, with the reason of a pod."""
    rollback_window: RollbackWindow | None = None
    revision_history_limit: Annotated[Int32, Field(ge=0, le=100)] = 5
    """Number of former revisions that are kept for a rollback."""
    analysis: RunHistoryLimits | None = None
    rollout: RolloutIntents | None = None


@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural=PLURAL,
        short_names=("madapter",),
        categories=("slipway",),
        columns=(
            PrinterColumn("Phase", "string", ".status.phase", "Pending, Progressing, Paused, Healthy or Degraded."),
            PrinterColumn(
                "Reason",
                "string",
                ".status.reason",
                "Reason of a failure, otherwise state of the rollout with the expected time of an analysis. Normally "
                "empty.",
            ),
            PrinterColumn(
                "Step", "string", ".status.step", "Current step of the rollout in flight, and the number of steps."
            ),
            PrinterColumn(
                "Weight",
                "integer",
                ".status.weight",
                "Percent of new requests for the canary, as acknowledged by every ready gateway.",
            ),
            PrinterColumn("Deployment", "string", ".spec.deploymentRef.name", "ModelDeployment whose pods serve it."),
            PrinterColumn("Stable", "string", ".status.stableRevision", "Revision that was last promoted."),
            PrinterColumn("Canary", "string", ".status.canaryRevision", "Revision under test."),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
            PrinterColumn("Model", "string", ".status.model", "Name that clients send as model.", wide=True),
            PrinterColumn(
                "Message", "string", ".status.message", "Current activity, and the reason for it.", wide=True
            ),
        ),
        status=True,
    )
)
@rule(
    "self.metadata.name.size() <= 44",
    "metadata.name of a ModelAdapter may have at most 44 characters: the names of its records append to it",
)
@rule(
    f"self.metadata.name.matches('{_DNS_LABEL}')",
    "metadata.name must start with a letter and hold only a-z, 0-9 and '-'; write for example support-v2",
)
class ModelAdapter(ApiType):
    """LoRA adapter that the pods of a ModelDeployment serve beside its model, and the rollout of its new versions."""

    spec: ModelAdapterSpec
    status: PatchedStatus | None = None
