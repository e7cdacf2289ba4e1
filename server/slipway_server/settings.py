"""Flags and their SLIPWAY_* environment fallbacks, checked, as one frozen object."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .telemetry.termination import Parser

TASKS = ("auto", "generate", "embed")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8")
KV_CACHE_DTYPES = ("auto", "int8")
KERNELS = ("auto", "native", "torch")  # as in kernels/native.py, which this process does without
ON_OFF = ("on", "off")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    model: Path
    served_model_name: str
    model_version: str
    task: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    device: str
    kernels: str
    allow_slow: str
    max_model_len: int | None
    host: str
    port: int
    probe_port: int
    drain_timeout_s: float
    stall_timeout_s: float
    max_engine_restarts: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_step_s: float
    prefix_caching: str
    max_kv_tokens: int
    gpu_memory_utilization: float
    max_queue_requests: int
    max_queue_tokens: int
    max_body_bytes: int
    replay_window_s: float
    max_replay_bytes: int
    max_replay_streams: int
    tenant_keys_file: str
    deployment: str
    trust_tenant_header: str
    step_trace: str
    enable_debug: str
    log_level: str


def parse(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> ServerSettings:
    """Exits with a sentence on stderr when a value makes no sense."""
    options = vars(_parser(os.environ if environment is None else environment).parse_args(arguments))
    model: Path = options["model"]
    return ServerSettings(
        **options
        | {
            "served_model_name": options["served_model_name"] or model.resolve().name,
            "model_version": options["model_version"] or "unversioned",
        }
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="slipway-server",
        description="Serves one model behind an OpenAI-compatible API.",
        epilog="Every flag has an environment fallback: --max-model-len is SLIPWAY_MAX_MODEL_LEN.",
        allow_abbrev=False,
    )

    def add(flag: str, default: object, help_text: str, **more: object) -> None:
        default = environment.get("SLIPWAY_" + flag[2:].replace("-", "_").upper(), default)
        shown = "" if default in (None, "") else f" (default: {default})"
        parser.add_argument(flag, default=default, help=help_text + shown, **more)  # type: ignore[arg-type]

    fallback = environment.get("SLIPWAY_MODEL")
    parser.add_argument(
        "--model", type=Path, default=fallback, required=not fallback, metavar="DIR",
        help="folder with config.json, tokenizer.json and safetensors, or the fetcher's slipway-model.json",
    )  # fmt: skip
    add("--served-model-name", "", "the name that clients ask for; the folder's name when not given", metavar="NAME")
    add("--model-version", "", "the version that answers tell", metavar="VERSION")
    add("--task", "auto", "what the model does", choices=TASKS)
    add("--dtype", "auto", "type of the weights; auto is the folder's own", choices=DTYPES)
    add("--quantization", "none", "at load: none, or int8", choices=QUANTIZATIONS)
    add("--kv-cache-dtype", "auto", "keys and values: as computed, or in int8", choices=KV_CACHE_DTYPES)
    add("--device", "auto", "auto, cpu, cuda or cuda:N", type=_device)
    add("--allow-slow", "off", "for trials: a GPU without its kernels computes", choices=ON_OFF, nargs="?", const="on")
    add("--max-model-len", None, "longest context in tokens; the model's own when not given", type=_at_least(1))
    add("--host", "0.0.0.0", "address to listen on")
    add("--port", 8000, "port of the API; 0 picks a free one", type=_port)
    add("--probe-port", 8001, "port of the probes' own thread; 0 picks a free one", type=_port)
    add(
        "--drain-timeout", 600, "seconds that running requests get after SIGTERM", type=_seconds, dest="drain_timeout_s"
    )
    add("--stall-timeout", 60, "seconds without a step until /healthz fails", type=_seconds, dest="stall_timeout_s")
    add("--max-num-seqs", 32, "requests that run at once", type=_at_least(1))
    add("--max-num-batched-tokens", 0, "tokens of one step; 0: what suits the device", type=_at_least(0))
    add(
        "--max-step", 0, "seconds that a step may take while prompts wait: as many of their tokens go in; "
        "0: what suits the device", type=_seconds, dest="max_step_s",
    )  # fmt: skip
    add("--prefix-caching", "on", "whether equal beginnings of prompts are computed once", choices=("on", "off"))
    add("--max-kv-tokens", 0, "tokens of all running requests together; 0: what fits into memory", type=_at_least(0))
    add(
        "--gpu-memory-utilization", 0.9, "share of the GPU's memory that may be used in all: what weights and steps "
        "leave of it holds keys and values", type=_share,
    )  # fmt: skip
    add("--max-queue-requests", 256, "requests that may wait; more get 429", type=_at_least(0))
    add("--max-queue-tokens", 262144, "prompt tokens that may wait; more get 429", type=_at_least(1))
    add("--max-body-bytes", 8 * 2**20, "largest request body; larger ones get 413", type=_at_least(1))
    _add_endurance(add)
    _add_tenants(add)
    add("--step-trace", "", "file that gets a line of JSON for each step of the engine", metavar="FILE")
    add("--enable-debug", "off", "GET /debug/profile on the probe port", choices=("on", "off"), nargs="?", const="on")
    add("--log-level", "INFO", "least level that is logged", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    return parser


def _add_endurance(add: Callable[..., None]) -> None:
    """What outlives the ordinary: other CPUs, crashes, broken connections."""
    add(
        "--kernels", "auto", "on a CPU: the C kernels where they can run, else torch; native: the C kernels or "
        "nothing; torch: never the C kernels", choices=KERNELS,
    )  # fmt: skip
    add(
        "--max-engine-restarts", 5, "times that a crashed engine is started again within ten minutes; one more crash "
        "ends the server; 0: the first one does", type=_at_least(0),
    )  # fmt: skip
    add(
        "--replay-window", 60, "seconds that a stream is kept for a client that lost it; 0: none is",
        type=_seconds, dest="replay_window_s",
    )  # fmt: skip
    add("--max-replay-bytes", 64 * 2**20, "of all streams that are kept; beyond it the oldest goes", type=_at_least(0))
    add("--max-replay-streams", 256, "that are kept without a client; beyond it the oldest goes", type=_at_least(1))


def _add_tenants(add: Callable[..., None]) -> None:
    """By which proof a tenant is honoured."""
    add(
        "--tenant-keys-file", "/etc/slipway/tenant/keys.json", "keys by which gateways prove whose request it is, read "
        "again when it changes; without it no tenant is honoured", metavar="FILE",
    )  # fmt: skip
    add("--deployment", "", "the ModelDeployment that these proofs must be for", metavar="NAMESPACE/NAME")
    add(
        "--trust-tenant-header", "off", "take X-Slipway-Tenant without a proof: where only a proxy of yours reaches "
        "this server", choices=ON_OFF, nargs="?", const="on",
    )  # fmt: skip


def _at_least(least: int) -> Callable[[str], int]:
    def parse_number(text: str) -> int:
        if not text.strip().isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse_number


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 0 and 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1, such as 0.9")
    return share


def _device(text: str) -> str:
    if text in ("auto", "cpu", "cuda") or (text.startswith("cuda:") and text[5:].isdigit()):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu, cuda or cuda:N")
