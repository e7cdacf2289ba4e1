"""Settings of the server: `--max-model-len` is SLIPWAY_MAX_MODEL_LEN."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from slipway_process.settings import ProcessSettings
from slipway_process.values import (
    Address,
    Bytes,
    Count,
    Device,
    FilePath,
    Flag,
    Folder,
    Name,
    OnOff,
    Port,
    PositiveCount,
    Seconds,
    Share,
    Switch,
    Variable,
)

from .placement import parse_cpu_list
from .telemetry.termination import Parser

Version = Annotated[str, AfterValidator(lambda version: version or "unversioned"), Flag("VERSION")]

ToolCallParser = Literal["auto", "none", "hermes", "llama3", "mistral", "json"]
ReasoningParser = Literal["auto", "none", "qwen3", "deepseek_r1"]
CKernels = Literal["auto", "native", "torch", "amx", "avx512_bf16", "avx512_vnni", "avx512", "avx_vnni", "avx2", "neon"]


def _cpu_threads_bind(text: str) -> str:
    if text not in ("auto", "nobind"):
        parse_cpu_list(text)
    return text


CpuThreadsBind = Annotated[str, AfterValidator(_cpu_threads_bind), Flag("auto|nobind|LIST")]


class ServerSettings(ProcessSettings):
    """Serves one model behind an OpenAI-compatible API."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-server", env_prefix="SLIPWAY_")

    model: Folder = Field(
        description="folder with config.json, tokenizer.json and safetensors, or the fetcher's slipway-model.json"
    )
    served_model_name: Name = Field(
        "", description="`model` of requests, another name is 404; without one the folder's name"
    )
    model_version: Version = Field("unversioned", description="`model_version` in responses")
    model_revision: Annotated[str, Flag("HASH")] = Field(
        "", description="the revision of the ModelDeployment: requests may pin it in place of the version"
    )
    task: Literal["auto", "generate", "embed", "predict", "classify", "rerank"] = Field(
        "auto",
        description="what the model does; predict: a classic model, which is never found by itself; classify: the "
        "same, and it must be a classifier; rerank: a reranker of Hugging Face",
    )
    format: Literal["auto", "onnx", "xgboost", "lightgbm", "skops", "transformers"] = Field(
        "auto",
        description="of a classic model; auto: by the names and first bytes of its files; transformers: a "
        "classifier of images or texts of Hugging Face, which auto does not look for",
    )
    max_batch_size: PositiveCount = Field(64, description="rows of one batch of a classic model")
    max_queue_delay_microseconds: Count = Field(
        0, description="time that an idle classic model waits for more rows; 0: never"
    )
    max_queue_size: Count = Field(
        0,
        description="requests that may wait for a classic model; more get 429; 0: at least 256, and up to 1024 while "
        "the model computes all that wait within a second; the last quarter is for tenants of which none waits",
    )
    request_timeout_ms: Count = Field(
        0,
        description="time of a request to a classic model, from arrival to response; one that would miss it gets 429; "
        "0: none",
    )
    max_batch_s: Seconds = Field(
        30.0, description="time of one batch; a classic model that takes longer hangs, and its process is started again"
    )
    max_model_memory_bytes: Bytes = Field(
        0, description="memory that the process of a classic model may allocate; 0: 80 % of what is free at the start"
    )
    pool_config: FilePath = Field(
        "",
        description="file with the models of a pool, read again when it changes: one server has all of them, loads "
        "each on demand from its folder below --model, and evicts by use; with --task predict",
    )
    pool_memory_bytes: Bytes = Field(
        0, description="memory of all processes of a pool's models; 0: 80 % of what is free at the start"
    )
    pool_max_loaded: PositiveCount = Field(32, description="models of a pool that are in memory at a time")
    pool_min_residency_s: Seconds = Field(
        10.0, description="time that a model of a pool stays in memory before it may be evicted for another one"
    )
    pool_load_timeout_s: Seconds = Field(
        30.0, description="time that a request waits until its model of a pool is loaded; then it gets 503"
    )
    pool_max_load_s: Annotated[Seconds, Field(gt=0)] = Field(
        120.0, description="time that one model of a pool may take to load; one that takes longer has failed"
    )
    pool_parallel_loads: PositiveCount = Field(2, description="models of a pool that load at a time")
    pool_max_waiting_loads: PositiveCount = Field(
        64, description="models of a pool that may wait to be loaded; requests for more of them get 503"
    )
    max_image_pixels: Annotated[int, Field(ge=1, le=1 << 28), Flag("N")] = Field(
        1 << 24,
        description="pixels of an image for a classic model, by its header; one with more is refused before it is "
        "decoded, which takes 16 bytes for each pixel",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="type of the weights; auto is the folder's own (float16 becomes float32 on CPUs)"
    )
    quantization: Literal["none", "int8"] = Field(
        "none", description="int8: weights and activations of all linear layers, computed at load"
    )
    kv_cache_dtype: Literal["auto", "int8"] = Field(
        "auto",
        description="auto: keys and values as computed; int8: with a float32 scale for each token and head",
    )
    device: Device = Field(
        "auto", description="auto, cpu, cuda or cuda:N; a named one that is not there ends the server"
    )
    kernels: CKernels = Field(
        "auto",
        description="on a CPU: the C kernels where they can run, else torch; native: the C kernels, or the server does "
        "not start; torch: never the C kernels; the others: those for this instruction set, or the server does not "
        "start",
    )
    cpu_threads_bind: CpuThreadsBind = Field(
        "nobind",
        description="CPUs of the engine's threads, one for each; auto: one of each physical core, where this container "
        "has CPUs of its own; nobind: the kernel chooses",
    )
    numa: Literal["auto", "off"] = Field(
        "auto",
        description="auto: where the engine's CPUs are of several memory nodes, its memory is interleaved over them",
    )
    allow_slow: Switch = Field(
        False,
        description="for trials: a GPU computes without its kernels, or with transformers; else the server ends with "
        "the reason",
    )
    enforce_eager: Switch = Field(
        False, description="on a GPU: no step is captured as a graph; slower, for drivers that refuse captures"
    )
    async_scheduling: Annotated[Literal["auto", "on", "off"], Flag("auto|on|off", bare="on")] = Field(
        "auto",
        description="a GPU computes a step while the host schedules the next one and publishes the one before; auto: "
        "on a GPU with its kernels; a CPU gains nothing",
    )
    max_model_len: Annotated[PositiveCount | None, Flag("N")] = Field(
        None, description="tokens of prompt and answer together; without it the model's own"
    )
    tool_call_parser: ToolCallParser = Field(
        "auto",
        description="format in which the model writes calls of tools; auto: by its chat template; none: calls only "
        "where `tool_choice` makes them certain",
    )
    reasoning_parser: ReasoningParser = Field(
        "auto",
        description="how reasoning is found in answers; auto: qwen3 if the chat template has `</think>`; qwen3: "
        "from `<think>`, which the prompt may have, to `</think>`; deepseek_r1: from the beginning to `</think>`",
    )
    host: Address = Field("0.0.0.0", description="address to listen on")
    port: Port = Field(8000, description="port of the API; 0 selects a free one, which the log line `listening` has")
    probe_port: Port = Field(8001, description="port of the probes' own thread; 0 selects a free one")
    ssl_certfile: FilePath = Field(
        "",
        description="certificate of the API port with its chain, in PEM, read again when it changes; without one HTTP",
    )
    ssl_keyfile: FilePath = Field("", description="private key of that certificate")
    ssl_ca_certs: FilePath = Field(
        "",
        validate_default=True,
        description="authorities by which clients must be certified; without a certificate they get the probes and "
        "/metrics alone",
    )
    drain_timeout_s: Seconds = Field(600.0, description="time for running requests after SIGTERM")
    stall_timeout_s: Seconds = Field(
        60.0, description="time without a heartbeat of engine or event loop until /healthz fails"
    )
    max_engine_restarts: Count = Field(
        5,
        description="restarts of a crashed engine within ten minutes; one more crash ends the server; 0: the first one "
        "does",
    )
    max_num_seqs: PositiveCount = Field(32, description="requests that run at once")
    max_num_batched_tokens: Count = Field(
        0, description="tokens of one step, decodes first, then prefills; 0: 512 on a CPU, 8192 on a GPU"
    )
    max_step_s: Seconds = Field(
        0.0,
        description="time that a step may take while prompts wait: so many of their tokens go in, found by measuring; "
        "0: 0.4 on a CPU, 0.05 on a GPU",
    )
    max_inter_token_s: Seconds = Field(
        0.0,
        description="the same while answers wait for their next token and up to eight requests are there, for 98 of "
        "100 steps; with more requests it grows in proportion, up to --max-step-s; 0: 0.18 on a CPU, 0.05 on a GPU",
    )
    prefix_caching: OnOff = Field(True, description="off: equal beginnings of prompts are computed each time")
    max_kv_tokens: Count = Field(
        0,
        description="tokens of all running requests and of what is kept of former ones, in blocks of 32; fewer than "
        "the context lower the context; 0: what fits into memory",
    )
    gpu_memory_utilization: Share = Field(
        0.9,
        description="share of the GPU's memory that may be used in all: what weights and the largest step leave of it "
        "holds keys and values",
    )
    max_queue_requests: Count = Field(
        256,
        description="requests that may wait; more get 429; the last quarter of those that run and wait is for tenants "
        "that have none here",
    )
    max_queue_tokens: PositiveCount = Field(
        262_144,
        description="prompt tokens that may wait; more get 429; the last quarter is for tenants that have none waiting",
    )
    max_body_bytes: Annotated[int, Field(ge=1), Flag("BYTES")] = Field(
        8 << 20, description="largest request body; larger ones get 413"
    )
    replay_window_s: Seconds = Field(
        60.0, description="time that a replay buffer keeps a broken stream for its client; 0: none"
    )
    max_replay_bytes: Bytes = Field(64 << 20, description="size of all replay buffers; beyond it the oldest goes")
    max_replay_streams: PositiveCount = Field(
        256, description="streams kept without a client; beyond it the oldest goes"
    )
    tenant_keys_file: FilePath = Field(
        "/etc/slipway/tenant/keys.json",
        description="keys by which gateways prove tenants, read again when it changes; without it none is honoured",
    )
    deployment: Annotated[str, Flag("NAMESPACE/NAME")] = Field(
        "", description="the ModelDeployment that these proofs must name"
    )
    trust_tenant_header: Switch = Field(
        False, description="accepts X-Slipway-Tenant without a proof, where only your own proxy reaches the server"
    )
    step_trace: FilePath = Field(
        "",
        description="file that gets a line of JSON for each step: tokens, seconds, running, waiting, cache",
    )
    enable_debug: Switch = Field(False, description="GET /debug/profile on the probe port")
    spans_endpoint: Annotated[
        str, Flag(""), Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    ] = Field("", description="where spans of requests go; without one there are none; the SDK reads more variables")
    spans_service: Annotated[str, Flag(""), Variable("OTEL_SERVICE_NAME")] = Field(
        "", description="name of this service in its spans; without one slipway-server"
    )

    @field_validator("served_model_name")
    @classmethod
    def _or_folder(cls, name: str, info: ValidationInfo) -> str:
        return name or (info.data["model"].resolve().name if "model" in info.data else "")

    @field_validator("pool_config")
    @classmethod
    def _of_predict(cls, file: str, info: ValidationInfo) -> str:
        if file and info.data.get("task", "predict") != "predict":
            raise ValueError("--pool-config is for --task predict")
        return file

    @field_validator("ssl_ca_certs")
    @classmethod
    def _whole(cls, authorities: str, info: ValidationInfo) -> str:
        others = (info.data.get("ssl_certfile"), info.data.get("ssl_keyfile"))
        if len({bool(one) for one in (*others, authorities)}) > 1:
            raise ValueError("--ssl-certfile, --ssl-keyfile and --ssl-ca-certs belong together: set all or none")
        return authorities


def parse(arguments: Sequence[str]) -> ServerSettings:
    """Reads the command line and the environment; an invalid value is also written to the termination log.

    Raises:
        SystemExit: 0 after --help; 2 with one sentence about all invalid values.
    """
    return ServerSettings.parse(arguments, Parser(prog="slipway-server", allow_abbrev=False))
