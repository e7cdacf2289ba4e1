"""Inputs of a pod: the model, the server that runs it, and its resources."""

from typing import Annotated

from pydantic import Field

from slipway_operator.api.markers import CelRule, ListMap, OneOf, rule
from slipway_operator.api.types import ApiType, Int32, IntOrString
from slipway_operator.api.v1alpha1.placement import Placement

HUB_TOKEN = "HF_TOKEN"  # variable that the fetcher reads, and default key of the Secret
# Variables that the operator sets in each pod: what the fetcher must load, and whose proofs the server takes.
PIN_VARIABLE, DEPLOYMENT_VARIABLE = "SLIPWAY_PIN_FILE", "SLIPWAY_DEPLOYMENT"
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
ObjectKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]

_POSITIVE = "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))"


class HubTokenRef(ApiType):
    """Reference to a Secret in the same namespace with the token of the hub. Only the fetcher gets the token, as
    HF_TOKEN. No revision, status or log contains it. A changed token creates no new revision; new pods use it."""

    name: ObjectName
    """Name of the Secret."""
    key: ObjectKey = HUB_TOKEN
    """Key in the Secret."""


@rule(
    "!has(self.revision) || self.uri.startsWith('hf://') || self.revision.matches('^sha256:[0-9a-f]{64}$')",
    (
        "spec.model.revision of an https://, pvc:// or file:// model is its digest: write sha256: and 64 "
        "hexadecimal digits in lower case"
    ),
)
@rule(
    "!has(self.revision) || !self.uri.startsWith('hf://') || !self.revision.startsWith('sha256:')",
    (
        "spec.model.revision of an hf:// model is a branch, a tag or a commit: write for example main, or the "
        "commit's 40 digits"
    ),
)
@rule(
    "!has(self.secretRef) || self.uri.startsWith('hf://')",
    ("spec.model.secretRef holds a hub's token and goes with hf:// only: remove it, or use a uri like hf://org/model"),
)
@rule(
    "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
    (
        "spec.model.name cannot change, because clients send it: create a second ModelDeployment with the new "
        "name and move them over"
    ),
)
class ModelSpec(ApiType):
    """Model and the name under which it is served. A change creates a new revision and starts a rollout."""

    uri: Annotated[
        str,
        Field(min_length=1, max_length=2048),
        CelRule(
            "self.matches('^(hf|https|pvc|file)://.+')",
            "spec.model.uri must start with hf://, https://, pvc:// or file://; write for example hf://org/model",
        ),
        CelRule(
            "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')",
            "an hf:// uri names one repository: write hf://org/model, and a branch or commit in spec.model.revision",
        ),
        CelRule(
            "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?$')",
            "a pvc:// uri names a claim in the same namespace: write pvc://claim/path",
        ),
        CelRule(
            "!self.startsWith('file://') || self.startsWith('file:///')",
            "a file:// uri holds an absolute path: write file:///path/to/model",
        ),
        CelRule(
            "!self.contains('/../') && !self.endsWith('/..')",
            "spec.model.uri must not contain '..': write the path without it",
        ),
        CelRule(
            "!self.matches('^[a-z]+://[^/?#]*@')",
            "spec.model.uri must not hold credentials, because other users can read it: write the host without them",
        ),
    ]
    """Location of the weights: hf://org/model, https://host/model.tar, pvc://claim/path, or file:///path inside the
    server image. Weights must be safetensors; pickled files are rejected."""
    secret_ref: HubTokenRef | None = None
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Branch, tag or commit of an hf:// repository; sha256: and a digest for an https:// archive or manifest, or for a
    pvc:// or file:// directory. A branch is resolved once: the first pod reports the commit, and all later pods of the
    revision load it. docs/server.md describes the digest."""
    name: (
        Annotated[
            str,
            Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$"),
            CelRule(
                "!self.contains('/')",
                (
                    "spec.model.name must not contain '/', because namespace/name is how a ModelDeployment is always "
                    "reached; write for example Qwen3-0.6B"
                ),
            ),
        ]
        | None
    ) = None
    """Name that clients send as "model". Default is metadata.name. It cannot be changed. The first ModelDeployment to
    claim a name owns it; NAMESPACE/NAME of the ModelDeployment always works."""
    version: (
        Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")] | None
    ) = None
    """Human-readable version; responses contain it as model_version. Default is the hash of the revision."""
    task: Annotated[str, OneOf(("auto", "generate", "embed"))] = "auto"
    """Task of the model: generate text or embed it. auto uses the configuration of the model."""
    dtype: Annotated[str, OneOf(("auto", "float32", "bfloat16", "float16"))] = "auto"
    """Number format of weights and computations. auto uses that of the checkpoint."""
    quantization: Annotated[str, OneOf(("none", "int8"))] = "none"
    """Quantization of the model. int8 computes linear layers with 8-bit weights and activations, which are converted
    from the checkpoint at load. It uses half the memory and is up to twice as fast on CPUs with AVX512-VNNI; on other
    hardware the server does not start."""
    max_model_len: Annotated[Int32, Field(ge=16, le=10000000)] | None = None
    """Maximum length of prompt plus answer in tokens. Default is the limit of the model."""


class SecretKeyRef(ApiType):
    """Key of a Secret."""

    name: ObjectName
    """Name of the Secret."""
    key: ObjectKey
    """Key in the Secret."""


class ConfigMapKeyRef(ApiType):
    """Key of a ConfigMap."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: ObjectKey
    """Key in the ConfigMap."""


@rule(
    "has(self.secretKeyRef) != has(self.configMapKeyRef)",
    "valueFrom in spec.engine.env has either secretKeyRef or configMapKeyRef: write one of them",
)
class EnvSource(ApiType):
    """Source of the value, in the same namespace. The revision contains the reference and never the value."""

    secret_key_ref: SecretKeyRef | None = None
    config_map_key_ref: ConfigMapKeyRef | None = None


@rule(
    "has(self.value) != has(self.valueFrom)",
    "a variable of spec.engine.env has either value or valueFrom: write one of them",
)
class EnvVar(ApiType):
    """Environment variable."""

    name: Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Value of the variable. Do not put secrets here."""
    value_from: EnvSource | None = None


class LocalObjectReference(ApiType):
    """Reference to a Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""


class EngineSpec(ApiType):
    """Server that runs the model. A change creates a new revision."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Image of the model server and of its fetcher. Default is the image of the operator's configuration, which is
    recorded with each revision."""
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], Field(max_length=8), ListMap("name")] = ()
    """Secrets in the same namespace with the credentials of the image's registry."""
    args: Annotated[
        tuple[Annotated[str, Field(max_length=1024, description="Argument of slipway-server.")], ...],
        Field(max_length=64),
        CelRule(
            (
                "self.all(a, "
                "!a.matches('^--(model|served-model-name|model-version|task|dtype|quantization|max-model-len|port|probe-port|drain-timeout|host)(=.*)?$'))"
            ),
            (
                "spec.engine.args must not set --model, --served-model-name, --model-version, --task, --dtype, "
                "--quantization, --max-model-len, --host, --port, --probe-port or --drain-timeout: write spec.model "
                "and spec.drain instead"
            ),
        ),
    ] = ()
    """Additional arguments of slipway-server, after those that the operator sets."""
    env: Annotated[
        tuple[EnvVar, ...],
        Field(max_length=64),
        CelRule(
            f"self.all(e, !(e.name in ['{PIN_VARIABLE}', '{DEPLOYMENT_VARIABLE}']))",
            (
                f"spec.engine.env must not set {PIN_VARIABLE} or {DEPLOYMENT_VARIABLE}, which the operator sets in "
                "each pod: remove them"
            ),
        ),
        CelRule(
            "self.all(e, !has(e.value) || !(e.name in ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN', 'HUGGINGFACE_TOKEN']))",
            (
                "spec.engine.env must not hold a hub's token, because other users can read it: put it into a "
                "Secret and name that in spec.model.secretRef"
            ),
        ),
        CelRule(
            (
                "self.all(e, !has(e.value) || "
                "!e.name.matches('(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY|CREDENTIALS?)$'))"
            ),
            (
                "spec.engine.env must not hold a secret, because other users can read it: put it into a Secret and "
                "write valueFrom.secretKeyRef in place of value"
            ),
        ),
        CelRule(
            "self.all(e, !has(e.value) || !e.value.matches('^[a-z0-9+]+://[^/?#@]*:[^/?#@]*@'))",
            (
                "a value of spec.engine.env must not hold a URL with credentials: put it into a Secret and write "
                "valueFrom.secretKeyRef in place of value"
            ),
        ),
        ListMap("name"),
    ] = ()
    """Environment variables. HOME and POD_NAME replace those of the operator. Variables with value are set for the
    server and the fetcher, for example HF_ENDPOINT; variables with valueFrom only for the server."""


class Accelerator(ApiType):
    """Devices of a pod."""

    resource: Annotated[
        str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    ] = "nvidia.com/gpu"
    """Name of the extended resource."""
    count: Annotated[
        Int32,
        Field(ge=1),
        CelRule(
            "self <= 1",
            (
                "spec.resources.accelerator.count must be 1: one pod's engine uses one device; write replicas for more "
                "of them"
            ),
        ),
    ]
    """Number of devices. The engine runs a model on one device."""


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


class InputsRecord(ApiType):
    """All fields of the spec that pods depend on. They are kept with each revision."""

    model: ModelSpec
    engine: EngineSpec | None = None
    resources: ResourcesSpec | None = None
    placement: Placement | None = None
