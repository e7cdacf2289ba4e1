"""The measured servers, how each is installed, started and called: all with the same room for keys and values."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.engine import environments
from bench.engine.load import Target
from bench.engine.models import ensure_gguf, ensure_w8a8
from bench.engine.shapes import Shape
from devcluster.ports import reserve_port
from testkit.world.program import Launch

REPOSITORY = Path(__file__).resolve().parents[2]
SLOTS = 32
CONTEXT_TOKENS = 1024  # of one request; llama.cpp divides its cache into as many equal parts
KV_TOKENS = SLOTS * CONTEXT_TOKENS
TRANSFORMERS_PAGE = 256
OURS, INT8 = "slipway", "slipway-int8"
QUANTIZATION_OF = {OURS: "none", INT8: "int8"}
KV_DTYPES = {"none": "auto", "int8": "int8"}  # of ours: who wants whole numbers wants them in the cache too
USAGE = {"ignore_eos": True, "stream_options": {"include_usage": True}}
# Some cut the tokens to a few dozen before top_p, unless a request says otherwise.
ALL_TOKENS = {"top_k": 0, "min_p": 0.0}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Place:
    """What a peer is started with."""

    shape: Shape
    model: Path
    environment: Path  # the peer's own
    files: Path  # that it reads: the model, or the model in its own format
    cores: int


@dataclass(frozen=True, slots=True)
class Peer:
    """`install` gives its environment's folder, `files` what it reads; both may raise Unavailable."""

    name: str
    title: str
    ours: bool
    weight_bytes: float
    install: Callable[[Console], Path]
    files: Callable[[Shape, Path, Path, Console], Path]
    command: Callable[[Place, int], tuple[list[str], Mapping[str, str], str]]  # with the path of the readiness probe
    fields: Mapping[str, Any]
    start_limit_s: float = 120.0
    sampled: Mapping[str, Any] = field(default_factory=dict)  # what keeps it from adding rules of its own

    def prepare(self, shape: Shape, model: Path, console: Console) -> Place:
        environment = self.install(console)
        return Place(shape, model, environment, self.files(shape, model, environment, console), cores())

    def launch(self, place: Place) -> tuple[Launch, Target]:
        port, probe_port = reserve_port(), reserve_port()
        command, variables, ready = self.command(place, port)
        command = [part.replace("PROBE_PORT", str(probe_port)) for part in command]
        url = f"http://127.0.0.1:{port}"
        ready_url = f"http://127.0.0.1:{probe_port if self.ours else port}{ready}"
        name = str(place.model) if self.name == "transformers" else "m"
        return Launch(command, variables, url, ready_url), Target(url, name, dict(self.fields), dict(self.sampled))


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _slipway(quantization: str) -> Callable[[Place, int], tuple[list[str], Mapping[str, str], str]]:
    def command(place: Place, port: int) -> tuple[list[str], Mapping[str, str], str]:
        flags = {
            "model": str(place.files), "served-model-name": "m", "dtype": "bfloat16", "quantization": quantization,
            "kv-cache-dtype": KV_DTYPES[quantization],
            "host": "127.0.0.1", "port": str(port), "probe-port": "PROBE_PORT", "max-num-seqs": str(SLOTS),
            "max-kv-tokens": str(KV_TOKENS), "log-level": "WARNING",
        }  # fmt: skip
        paths = os.pathsep.join(str(REPOSITORY / folder) for folder in ("server", "."))
        variables = {"PYTHONPATH": paths, **OFFLINE}
        return [sys.executable, "-m", "slipway_server", *_as_flags(flags)], variables, "/readyz"

    return command


def _vllm(place: Place, port: int) -> tuple[list[str], Mapping[str, str], str]:
    """Through its module: its command looks for a distribution called vllm, which this build is not."""
    flags = {
        "model": str(place.files), "served-model-name": "m", "dtype": "bfloat16", "host": "127.0.0.1",
        "port": str(port), "generation-config": "vllm", "max-model-len": str(4 * CONTEXT_TOKENS),
        "max-num-seqs": str(SLOTS),
        "kv-cache-memory-bytes": str(KV_TOKENS * place.shape.kv_bytes_per_token),
    }  # fmt: skip
    caches = place.environment / "caches"
    variables = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{place.cores - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "LD_PRELOAD": ":".join(environments.preloads(place.environment)),
        "PYTHONPATH": "",
        **OFFLINE,
    }
    python = str(environments.python_of(place.environment))
    return [python, "-m", "vllm.entrypoints.openai.api_server", *_as_flags(flags)], variables, "/health"


def _llama(cache: str) -> Callable[[Place, int], tuple[list[str], Mapping[str, str], str]]:
    """`cache`: the type of its keys and values."""
    return lambda place, port: _llama_server(place, port, cache)


def _llama_server(place: Place, port: int, cache: str) -> tuple[list[str], Mapping[str, str], str]:
    threads = str(place.cores)
    flags = {
        "cache-type-k": cache, "cache-type-v": cache, "flash-attn": "on",
        "model": str(place.files), "alias": "m", "host": "127.0.0.1", "port": str(port), "threads": threads,
        "threads-batch": threads, "parallel": str(SLOTS), "ctx-size": str(KV_TOKENS), "cache-ram": "0",
    }  # fmt: skip
    server = str(environments.llama_program(place.environment, "llama-server"))
    return [server, *_as_flags(flags), "--no-webui"], {}, "/health"


def _transformers(place: Place, port: int) -> tuple[list[str], Mapping[str, str], str]:
    flags = {
        "device": "cpu", "dtype": "bfloat16", "host": "127.0.0.1", "port": str(port),
        "cb-num-blocks": str(KV_TOKENS // TRANSFORMERS_PAGE),
    }  # fmt: skip
    variables = {"OMP_NUM_THREADS": str(place.cores), "PYTHONPATH": "", **OFFLINE}
    program = str(place.environment / "venv" / "bin" / "transformers")
    # The default model is loaded before the first request, as the others do it.
    return [program, "serve", str(place.files), "--continuous-batching", *_as_flags(flags)], variables, "/health"


def _as_flags(flags: Mapping[str, str]) -> list[str]:
    return [part for name, value in flags.items() for part in (f"--{name}", value)]


def _own_environment(_: Console) -> Path:
    return Path(sys.prefix)


def _the_model(_shape: Shape, model: Path, _environment: Path, _console: Console) -> Path:
    return model


def _w8a8(shape: Shape, model: Path, environment: Path, console: Console) -> Path:
    return ensure_w8a8(shape, model, console)


def _gguf(kind: str) -> Callable[[Shape, Path, Path, Console], Path]:
    return lambda shape, model, llama, console: ensure_gguf(shape, model, kind, llama, console)


def _made(make: Callable[[], environments.Environment]) -> Callable[[Console], Path]:
    return lambda console: environments.ensure(make(), console)


_IN_LLAMA, _IN_VLLM, _IN_TRANSFORMERS = map(_made, (environments.llama, environments.vllm, environments.transformers))
_IN_LLAMA_AVX2 = _made(environments.llama_avx2)


def _llama_peer(
    name: str, title: str, weight_bytes: float, weights: str, cache: str, install: Callable[[Console], Path]
) -> Peer:
    """`weights` and `cache`: types of llama.cpp."""
    command = _llama(cache)
    return Peer(name, title, False, weight_bytes, install, _gguf(weights), command, USAGE, 240.0, ALL_TOKENS)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "**Slipway bf16**", True, 2, _own_environment, _the_model, _slipway("none"), USAGE),
        Peer(INT8, "**Slipway int8, KV int8**", True, 1, _own_environment, _the_model, _slipway("int8"), USAGE),
        Peer("vllm", "vLLM-CPU bf16", False, 2, _IN_VLLM, _the_model, _vllm, USAGE, 420.0, ALL_TOKENS),
        Peer("vllm-w8a8", "vLLM-CPU W8A8", False, 1, _IN_VLLM, _w8a8, _vllm, USAGE, 420.0, ALL_TOKENS),
        _llama_peer("llama", "llama.cpp bf16", 2, "bf16", "f16", _IN_LLAMA),
        _llama_peer("llama-q8", "llama.cpp q8_0, KV q8_0", 34 / 32, "q8_0", "q8_0", _IN_LLAMA),
        _llama_peer("llama-avx2", "llama.cpp bf16, AVX2", 2, "bf16", "f16", _IN_LLAMA_AVX2),
        _llama_peer("llama-avx2-q8", "llama.cpp q8_0, KV q8_0, AVX2", 34 / 32, "q8_0", "q8_0", _IN_LLAMA_AVX2),
        # It refuses fields that it does not know.
        Peer("transformers", "transformers CB bf16", False, 2, _IN_TRANSFORMERS, _the_model, _transformers, {}, 240.0),
    )
}  # fmt: skip
QUICK_PEERS = ("slipway", "slipway-int8", "transformers")
# As on a CPU without AVX512, for runs with SLIPWAY_KERNELS=avx2: only for the name in --peers.
AVX2_PEERS = ("llama-avx2", "llama-avx2-q8")
PEERS_OF_A_FULL_RUN = tuple(name for name in PEERS if name not in AVX2_PEERS)
