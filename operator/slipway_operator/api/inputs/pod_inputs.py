"""Inputs of a pod: the model (`model.py`), the server that runs it, its resources and its place (`pod_spec.py`)."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import CelRule, ListMap, implied_defaults, rule
from slipway_contracts.api.types import ApiType, Int32
from slipway_operator.api.inputs.adapters import AdaptersSpec
from slipway_operator.api.inputs.model import ModelSpec, ObjectKey, ObjectName
from slipway_operator.api.inputs.pod_spec import (
    EnvFromSource,
    Placement,
    PodFields,
    ResourcesSpec,
    VolumeMount,
)
from slipway_operator.api.inputs.pool import PoolMembership

# Variables that the operator sets in each pod: what the fetcher must load, and whose proofs the server takes.
PIN_VARIABLE, DEPLOYMENT_VARIABLE = "SLIPWAY_PIN_FILE", "SLIPWAY_DEPLOYMENT"
PROGRESS_VARIABLE = "SLIPWAY_PROGRESS_PORT"
HttpPath = Annotated[str, Field(max_length=256, pattern=r"^/[-A-Za-z0-9._~/]*$")]
MetricName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]


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
    *("headless", "nnodes", "node-rank", "master-addr", "master-port", "pipeline-parallel-size"),
)
_SGLANG_FLAGS = (
    *("model-path", "served-model-name", "host", "port", "dtype", "context-length", "tp-size", "tensor-parallel-size"),
    *("config", "api-key", "admin-api-key", "ssl-keyfile", "ssl-certfile", "is-embedding"),
    *("nnodes", "node-rank", "dist-init-addr", "pp-size", "pipeline-parallel-size"),
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
        "spec.model, spec.resources.accelerator, spec.engine.parallelism and spec.drain instead",
    )


class EngineMetricNames(ApiType):
    """Names of metrics in the Prometheus format. A metric without a name is unknown, and never taken as 0."""

    queued: MetricName | None = None
    """Gauge of the requests that wait. Autoscaling by QueueDepth needs it."""
    running: MetricName | None = None
    """Gauge of the requests in progress."""
    generated_tokens: MetricName | None = None
    """Counter of generated tokens, with _total at its end. Autoscaling by TokensPerSecond needs it."""
    prompt_tokens: MetricName | None = None
    """Counter of the tokens of prompts, with _total at its end."""
    kv_cache_usage: MetricName | None = None
    """Gauge of the used share of the KV cache, from 0 to 1. Autoscaling by KVCacheUsage needs it."""
    time_to_first_token: MetricName | None = None
    """Histogram in seconds, without _bucket at its end. Autoscaling by TTFT needs it."""


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
    worker_command: Annotated[
        tuple[Annotated[str, Field(max_length=1024, description="Word of the command.")], ...], Field(max_length=64)
    ] = ()
    """Command, with its arguments, of the other pods of a replica with spec.engine.parallelism.nodes above 1. If
    omitted, they run command and args as the leader does, and $(LWS_WORKER_INDEX) is 0 in the leader alone."""


class ParallelismSpec(ApiType):
    """How a replica is divided. The number of accelerators of all its pods is tensor times pipeline."""

    nodes: Annotated[Int32, Field(ge=1, le=64)] = 1
    """Number of pods that are one replica. Above 1, each revision is a LeaderWorkerSet, and requests go to the leader
    of each group. The cluster needs LeaderWorkerSet."""
    tensor: Annotated[Int32, Field(ge=1, le=1024)] | None = None
    """Tensor parallel size. Default for vllm is the number of accelerators of a pod, for sglang that of all pods."""
    pipeline: Annotated[Int32, Field(ge=1, le=1024)] | None = None
    """Pipeline parallel size. Default for vllm is nodes, for sglang 1."""


@rule(
    "!has(self.promptLookupMin) || !has(self.promptLookupMax) || self.promptLookupMin <= self.promptLookupMax",
    "spec.engine.speculation.promptLookupMin must not be above promptLookupMax: exchange them",
)
@rule(
    "self.method != 'draft' || (!has(self.promptLookupMin) && !has(self.promptLookupMax))",
    "spec.engine.speculation.promptLookupMin and promptLookupMax are for method: ngram: remove them",
)
@implied_defaults()
class SpeculationSpec(ApiType):
    """Speculative decoding: a step also verifies tokens that are likely to come, and yields several where they do. With
    slipway the responses stay the same; docs/speculation.md has what it gains, and where."""

    method: Literal["ngram", "draft"]
    """What the tokens come from. ngram takes those that followed the same tokens before, in the prompt or the response:
    for responses that copy, as in summaries, edits of code and answers from documents. draft is the smaller model of
    spec.model.draft, and what is used without spec.engine.speculation where that is written."""
    num_speculative_tokens: Annotated[Int32, Field(ge=1, le=16)] = 6
    """Maximum number of tokens that a step verifies for a response beside its next one. Default is 6. slipway verifies
    fewer, or none, where more would not gain."""
    prompt_lookup_min: Annotated[Int32, Field(ge=1, le=16)] | None = None
    """Minimum number of tokens at the end of a response that must stand earlier. Default for slipway is 2, for vllm its
    own. Not for sglang."""
    prompt_lookup_max: Annotated[Int32, Field(ge=1, le=64)] | None = None
    """Maximum number of tokens that are compared to choose among several such places. Default for slipway is 8, for
    vllm its own. Not for sglang."""


ParserName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

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
    "self.type in ['vllm', 'sglang', 'custom'] || !has(self.parallelism)",
    "spec.engine.parallelism is for the engine types vllm, sglang and custom: slipway-server uses one device, so "
    "remove it",
)
@rule(
    "self.type != 'custom' || !has(self.parallelism) || (!has(self.parallelism.tensor) && "
    "!has(self.parallelism.pipeline))",
    "spec.engine.parallelism of a custom engine has nodes alone: write the other sizes in spec.engine.args",
)
@rule(
    "!has(self.custom) || !has(self.custom.workerCommand) || (has(self.parallelism) && self.parallelism.nodes > 1)",
    "spec.engine.custom.workerCommand needs spec.engine.parallelism.nodes above 1: write it, or remove workerCommand",
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
    "!a.matches('^--(model|served-model-name|model-version|model-revision|task|format|dtype|quantization|max-model-len|port|probe-port|drain-timeout|host|"
    "max-batch-size|max-queue-delay-microseconds|max-queue-size|request-timeout-ms)(=.*)?$'))",
    "spec.engine.args must not set --model, --served-model-name, --model-version, --model-revision, --task, --format, "
    "--dtype, --quantization, --max-model-len, --host, --port, --probe-port, --drain-timeout, --max-batch-size, "
    "--max-queue-delay-microseconds, --max-queue-size or --request-timeout-ms: write spec.model, spec.batching and "
    "spec.drain instead",
)
@rule(
    "self.type != 'custom' || (!has(self.toolParser) && !has(self.reasoningParser))",
    "spec.engine.toolParser and reasoningParser are not for the engine type custom: write its own arguments in "
    "spec.engine.args",
)
@rule(
    "!has(self.toolParser) || !has(self.args) || self.args.all(a, !a.matches('^--tool-call-parser(=.*)?$'))",
    "spec.engine.args must not set --tool-call-parser beside spec.engine.toolParser: remove one of them",
)
@rule(
    "!has(self.reasoningParser) || !has(self.args) || self.args.all(a, !a.matches('^--reasoning-parser(=.*)?$'))",
    "spec.engine.args must not set --reasoning-parser beside spec.engine.reasoningParser: remove one of them",
)
@rule(
    "self.type != 'custom' || !has(self.speculation)",
    "spec.engine.speculation is not for the engine type custom: write its own arguments in spec.engine.args",
)
@rule(
    "self.type != 'sglang' || !has(self.speculation) || (!has(self.speculation.promptLookupMin) && "
    "!has(self.speculation.promptLookupMax))",
    "spec.engine.speculation.promptLookupMin and promptLookupMax are not for the engine type sglang: write its own "
    "flags in spec.engine.args",
)
@rule(
    "!has(self.speculation) || !has(self.args) || self.args.all(a, !a.matches('^(--specul|--num-specul|--prompt-lookup|"
    "-sc)'))",
    "spec.engine.args must not set flags of speculative decoding beside spec.engine.speculation: remove one of them",
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
    tool_parser: ParserName | None = None
    """Parser of tool calls in answers, by the engine's own name for it: hermes, llama3, mistral or json for slipway,
    for vllm and sglang see their documentation. slipway chooses by the model's chat template if omitted; vllm and
    sglang return tool calls as text."""
    reasoning_parser: ParserName | None = None
    """Parser of reasoning in answers, by the engine's own name for it."""
    speculation: SpeculationSpec | None = None
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
    env_from: Annotated[tuple[EnvFromSource, ...], Field(max_length=16)] = ()
    """Secrets and ConfigMaps in the same namespace whose keys become environment variables of the server. Variables of
    env and of the operator take precedence."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=16), ListMap("mountPath")] = ()
    """Mounts of spec.pod.volumes in the server's container."""
    command: Annotated[
        tuple[Annotated[str, Field(max_length=1024, description="Word of the command.")], ...], Field(max_length=64)
    ] = ()
    """Command of a custom engine, in place of the image's entrypoint. $(SLIPWAY_MODEL_PATH), $(SLIPWAY_MODEL_NAME) and
    $(SLIPWAY_PORT) stand for the folder of the model, the name that clients send, and the port to listen on; with
    several nodes $(LWS_LEADER_ADDRESS), $(LWS_GROUP_SIZE) and $(LWS_WORKER_INDEX) for the group and the pod in it."""
    custom: CustomEngine | None = None
    parallelism: ParallelismSpec | None = None


class BatchingSpec(ApiType):
    """Dynamic batching of a model with task: predict. A batch starts as soon as the model is idle. A change creates a
    new revision."""

    max_batch_size: Annotated[Int32, Field(ge=1, le=65536)] | None = None
    """Maximum number of rows of a batch. Requests with more rows are split. Default is 64."""
    max_queue_delay_microseconds: Annotated[Int32, Field(ge=0, le=10000000)] | None = None
    """Time that an idle model waits for more rows. Default is 0: it never waits."""
    max_queue_size: Annotated[Int32, Field(ge=1, le=100000)] | None = None
    """Maximum number of requests that wait in a pod; more get status 429. Default is at least 256, and up to 1024 while
    the model computes all that wait within a second."""
    timeout_milliseconds: Annotated[Int32, Field(ge=1, le=86400000)] | None = None
    """Maximum time from the arrival of a request to its response. A request that would take longer gets status 429 at
    once, and a request can only shorten it. Default is no limit."""


class InputsRecord(ApiType):
    """All fields of the spec that pods depend on. They are kept with each revision."""

    model: ModelSpec
    engine: EngineSpec | None = None
    batching: BatchingSpec | None = None
    pool: PoolMembership | None = None
    adapters: AdaptersSpec | None = None
    resources: ResourcesSpec | None = None
    placement: Placement | None = None
    pod: PodFields | None = None


class RegistryRecord(ApiType):
    """Version of a registered model that a revision runs."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    version: Annotated[str, Field(min_length=1, max_length=16)]


class RecordedInputs(InputsRecord):
    """What is kept with each revision: its inputs, and what the operator resolved for it. `model.uri` is resolved."""

    registry: RegistryRecord | None = None
