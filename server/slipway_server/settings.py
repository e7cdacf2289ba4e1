"""Settings of the server: `--max-model-len` is SLIPWAY_MAX_MODEL_LEN."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from slipway_process.serving.settings import ServingSettings
from slipway_process.values import (
    Bytes,
    Count,
    Device,
    FilePath,
    Flag,
    Names,
    OnOff,
    PositiveCount,
    Seconds,
    Share,
    Switch,
)

from .placement import parse_cpu_list

ToolCallParser = Literal["auto", "none", "hermes", "llama3", "mistral", "json"]
ReasoningParser = Literal["auto", "none", "qwen3", "deepseek_r1"]
CKernels = Literal["auto", "native", "torch", "amx", "avx512_bf16", "avx512_vnni", "avx512", "avx_vnni", "avx2", "neon"]


def _cpu_threads_bind(text: str) -> str:
    if text not in ("auto", "nobind"):
        parse_cpu_list(text)
    return text


CpuThreadsBind = Annotated[str, AfterValidator(_cpu_threads_bind), Flag("auto|nobind|LIST")]


class ServerSettings(ServingSettings):
    """Serves one model behind an OpenAI-compatible API."""

    model_config = SettingsConfigDict(cli_prog_name="slipway-server")

    task: Literal["auto", "generate", "embed", "predict", "classify", "rerank"] = Field(
        "auto",
        description="what the model does; predict: a classic model, which is never found by itself; classify: the "
        "same, and it must be a classifier; rerank: a reranker of Hugging Face",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="type of the weights; auto is the folder's own (float16 becomes float32 on CPUs)"
    )
    quantization: Literal["none", "int8", "int4"] = Field(
        "none",
        description="int8: weights and activations of all linear layers, computed at load; int4: weights of layers in "
        "groups of 64, the head in int8. Published quantized checkpoints need none",
    )
    max_perplexity_ratio: Annotated[float, Field(ge=0.0, le=1000.0), Flag("RATIO")] = Field(
        1.5,
        description="with --quantization int8 or int4 the server does not start if a short text's perplexity is more "
        "than this times that of the plain weights; 0: it is not measured, which makes loading faster",
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
    speculation: Literal["none", "ngram", "draft"] = Field(
        "none",
        description="steps also verify tokens that are likely to come, where that gains time; the responses are the "
        "same. ngram: tokens that followed the same tokens earlier in prompt or response; draft: those of a second, "
        "smaller model",
    )
    speculative_draft_model: Annotated[str, Flag("DIR")] = Field(
        "",
        validate_default=True,
        description="with --speculation draft: folder of the smaller model, which must have the model's tokenizer",
    )
    num_speculative_tokens: Annotated[PositiveCount, Field(le=16)] = Field(
        6, description="with --speculation: the most tokens that a step verifies for a response beside its next one"
    )
    prompt_lookup_min: Annotated[PositiveCount, Field(le=16)] = Field(
        2, description="with --speculation ngram: the fewest tokens at the end of a response that must stand earlier"
    )
    prompt_lookup_max: Annotated[PositiveCount, Field(le=64)] = Field(
        8,
        validate_default=True,
        description="with --speculation ngram: of several places the one where the most tokens agree, up to this",
    )
    max_loras: Annotated[Count, Field(le=1024)] = Field(
        0,
        description="LoRA adapters that are loaded at a time; a step may have rows of all of them; 0: there are none",
    )
    max_lora_rank: Annotated[PositiveCount, Field(le=512)] = Field(16, description="highest rank of an adapter")
    max_lora_bytes: Bytes = Field(
        1 << 30, description="size of all loaded adapters; beyond it the least recently used one goes that can"
    )
    lora_root: Annotated[str, Flag("DIR")] = Field(
        "/adapters", description="folder below which adapters lie; no others are loaded"
    )
    lora_base_names: Names = Field(
        (),
        description="names that `base_model_name_or_path` of an adapter may have, beside --served-model-name and the "
        "model's own; `*`: any",
    )
    replay_window_s: Seconds = Field(
        60.0, description="time that a replay buffer keeps a broken stream for its client; 0: none"
    )
    max_replay_bytes: Bytes = Field(64 << 20, description="size of all replay buffers; beyond it the oldest goes")
    max_replay_streams: PositiveCount = Field(
        256, description="streams kept without a client; beyond it the oldest goes"
    )
    step_trace: FilePath = Field(
        "",
        description="file that gets a line of JSON for each step: tokens, seconds, running, waiting, cache",
    )
    enable_debug: Switch = Field(False, description="GET /debug/profile on the probe port")

    @field_validator("speculation")
    @classmethod
    def _drafts_known_tokens(cls, method: str, info: ValidationInfo) -> str:
        if method != "none" and info.data.get("async_scheduling") == "on":
            raise ValueError(
                "drafts continue tokens that are known, and with --async-scheduling on a step begins before they are: "
                "remove one of the two"
            )
        return method

    @field_validator("speculative_draft_model")
    @classmethod
    def _drafts_by_a_model(cls, folder: str, info: ValidationInfo) -> str:
        if (method := info.data.get("speculation")) and (method == "draft") != bool(folder):
            raise ValueError(
                "--speculation draft needs the folder of a draft model"
                if method == "draft"
                else f"it is for --speculation draft, not {method}"
            )
        return folder

    @field_validator("prompt_lookup_max")
    @classmethod
    def _not_below_the_least(cls, most: int, info: ValidationInfo) -> int:
        if most < (least := info.data.get("prompt_lookup_min", 1)):
            raise ValueError(f"{most} is less than --prompt-lookup-min {least}")
        return most
