"""Inputs of a pod: the model, the server that runs it, and its resources."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_operator.api.markers import CelRule, ListMap, OneOf, rule
from slipway_operator.api.types import ApiType, Int32
from slipway_operator.api.v1alpha1.placement import Placement, ResourcesSpec

HUB_TOKEN = "HF_TOKEN"  # variable that the fetcher reads, and default key of the Secret
# Variables that the operator sets in each pod: what the fetcher must load, and whose proofs the server takes.
PIN_VARIABLE, DEPLOYMENT_VARIABLE = "SLIPWAY_PIN_FILE", "SLIPWAY_DEPLOYMENT"
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
HttpPath = Annotated[str, Field(max_length=256, pattern=r"^/[-A-Za-z0-9._~/]*$")]
MetricName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
ObjectKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]


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


# Flags of other engines that the operator sets, or that break its contract with them. Both parsers take a unique
# beginning of a flag for the flag, and vLLM's takes _ for -.
_VLLM_FLAGS = (
    *("model", "served-model-name", "host", "port", "uds", "dtype", "max-model-len", "tensor-parallel-size"),
    *("shutdown-timeout", "config", "api-key", "root-path", "ssl-keyfile", "ssl-certfile", "runner"),
    *("headless", "nnodes", "node-rank", "master-addr", "master-port"),
)
_SGLANG_FLAGS = (
    *("model-path", "served-model-name", "host", "port", "dtype", "context-length", "tp-size", "tensor-parallel-size"),
    *("config", "api-key", "admin-api-key", "ssl-keyfile", "ssl-certfile", "is-embedding"),
    *("nnodes", "node-rank", "dist-init-addr"),
)


def _abbreviated(flags: tuple[str, ...]) -> str:
    """Regular expression for the flags and for each beginning of them, with or without a value."""
    parts = []
    for flag in flags:
        letters = ["[-_]" if letter == "-" else letter for letter in flag]
        parts.append("(".join(letters) + ")?" * (len(letters) - 1))
    return f"^--({'|'.join(parts)})([=.].*)?$"


def _owned(engine: str, flags: tuple[str, ...], short: str = "") -> tuple[str, str]:
    """CEL rule that refuses the flags in spec.engine.args, and its message."""
    also = f" && !a.matches('{short}')" if short else ""
    return (
        f"self.type != '{engine}' || !has(self.args) || self.args.all(a, !a.matches('{_abbreviated(flags)}'){also})",
        f"spec.engine.args of a {engine} engine must not set --{', --'.join(flags)}, in full or abbreviated: write "
        "spec.model, spec.resources.accelerator and spec.drain instead",
    )


class EngineMetricNames(ApiType):
    """Names of metrics in the Prometheus format. A metric without a name is unknown, and never taken as 0."""

    queued: MetricName | None = None
    """Gauge of the requests that wait. Autoscaling by QueueDepth needs it."""
    running: MetricName | None = None
    """Gauge of the requests in progress."""
    generated_tokens: MetricName | None = None
    """Counter of generated tokens, with _total at its end. Autoscaling by TokensPerSecond needs it."""
    kv_cache_usage: MetricName | None = None
    """Gauge of the used share of the KV cache, from 0 to 1."""
    time_to_first_token: MetricName | None = None
    """Histogram in seconds, without _bucket at its end. Autoscaling by TTFTP95 needs it."""


class CustomEngine(ApiType):
    """How the operator checks a custom engine. It must listen on port 8000 of all addresses and have the paths of
    OpenAI's API."""

    readiness_path: HttpPath = "/health"
    """Path with status 200 when the engine can serve, and another status or no response before."""
    liveness_path: HttpPath | None = None
    """Path with status 200 while the engine works. If omitted, an open port is enough."""
    metrics_path: HttpPath = "/metrics"
    """Path of the metrics."""
    metrics: EngineMetricNames | None = None
    pre_stop_seconds: Annotated[Int32, Field(ge=5, le=3600)] = 30
    """Time in seconds between the removal of a pod from the gateways and SIGTERM. Requests in progress have this time
    if the engine ends them at SIGTERM."""
    run_as_user: Annotated[Int32, Field(ge=1, le=2147483646)] = 65532
    """User id of the engine's process. Root is not possible."""


# vLLM before 0.18 ends running requests at SIGTERM: it has no --shutdown-timeout.
_VLLM_VERSION = "v?(0[.](1[89]|[2-9][0-9]|[1-9][0-9][0-9])|[1-9][0-9]*[.][0-9])"


@rule(
    "self.type == 'slipway' || has(self.image)",
    "spec.engine.image is required for the engine types vllm, sglang and custom: write for example "
    "vllm/vllm-openai:v0.32.0",
)
@rule(
    "self.type == 'custom' || (!has(self.command) && !has(self.custom))",
    "spec.engine.command and spec.engine.custom are for the engine type custom: remove them, or write type: custom",
)
@rule(
    "!has(self.version) || self.type == 'vllm'",
    "spec.engine.version is for the engine type vllm: remove it",
)
@rule(
    f"self.type != 'vllm' || (has(self.version) ? self.version.matches('^{_VLLM_VERSION}') : "
    f"(!has(self.image) || self.image.matches(':{_VLLM_VERSION}')))",
    "vLLM must be 0.18 or later, because earlier ones end running requests at SIGTERM: write it as the tag of "
    "spec.engine.image, for example vllm/vllm-openai:v0.32.0, or beside a digest in spec.engine.version",
)
@rule(
    "self.type != 'slipway' || !has(self.args) || self.args.all(a, "
    "!a.matches('^--(model|served-model-name|model-version|task|dtype|quantization|max-model-len|port|probe-port|drain-timeout|host)(=.*)?$'))",
    "spec.engine.args must not set --model, --served-model-name, --model-version, --task, --dtype, "
    "--quantization, --max-model-len, --host, --port, --probe-port or --drain-timeout: write spec.model "
    "and spec.drain instead",
)
@rule(*_owned("vllm", _VLLM_FLAGS, "^-tp([=0-9].*)?$"))
@rule(*_owned("sglang", _SGLANG_FLAGS))
@rule(
    "self.type != 'vllm' || !has(self.env) || self.env.all(e, e.name != 'VLLM_API_KEY')",
    "spec.engine.env of a vllm engine must not set VLLM_API_KEY: gateways have no key of the pods, so every request "
    "would be refused",
)
class EngineSpec(ApiType):
    """Server that runs the model. A change creates a new revision."""

    type: Literal["slipway", "vllm", "sglang", "custom"] = "slipway"
    """Engine. slipway is slipway-server. For vllm and sglang the operator writes the flags. A custom engine is any
    image with OpenAI's API on port 8000. docs/engines.md has what each type can do."""
    version: Annotated[str, Field(max_length=64, pattern=r"^v?[0-9]+\.[0-9]+[-+.A-Za-z0-9]*$")] | None = None
    """Version of vLLM, where the tag of the image does not begin with it."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Image of the engine. Default for slipway is the image of the operator's configuration, which is recorded with
    each revision."""
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], Field(max_length=8), ListMap("name")] = ()
    """Secrets in the same namespace with the credentials of the image's registry."""
    args: Annotated[
        tuple[Annotated[str, Field(max_length=1024, description="Argument of the engine.")], ...], Field(max_length=64)
    ] = ()
    """Additional arguments of the engine, after those that the operator sets."""
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
    command: Annotated[
        tuple[Annotated[str, Field(max_length=1024, description="Word of the command.")], ...], Field(max_length=64)
    ] = ()
    """Command of a custom engine, in place of the image's entrypoint. $(SLIPWAY_MODEL_PATH), $(SLIPWAY_MODEL_NAME) and
    $(SLIPWAY_PORT) stand for the folder of the model, the name that clients send, and the port to listen on."""
    custom: CustomEngine | None = None


class InputsRecord(ApiType):
    """All fields of the spec that pods depend on. They are kept with each revision."""

    model: ModelSpec
    engine: EngineSpec | None = None
    resources: ResourcesSpec | None = None
    placement: Placement | None = None
