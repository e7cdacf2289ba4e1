"""What a run of the bench could have measured."""

from typing import Any

from bench.engine.ceilings import Ceilings
from bench.engine.load import Answer
from bench.engine.result import Result
from bench.engine.shapes import QWEN06
from bench.engine.workload import Prompt

MACHINE = {"cores": 2, "cpu": "a CPU", "memory_gib": 24.0, "l3_mib": 32.0, "flags": ["avx2"], "virtual": True}
CEILINGS = Ceilings(27.0, 28.0, 400.0, 410.0, 870.0, 880.0)


def answer(*times_s: float, began_s: float = 0.0, prompt_tokens: int = 10, **more: Any) -> Answer:
    """One whose tokens came at these times, with the counts that were intended."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(times_s)}
    prompt = Prompt("", prompt_tokens, len(times_s))
    plain: dict[str, Any] = {"ended_s": times_s[-1] if times_s else began_s, "usage": usage}
    return Answer(prompt, began_s, token_times_s=list(times_s), **plain | more)


def load(peer: str, concurrency: int, tokens_per_s: float, **more: Any) -> dict[str, Any]:
    plain = {
        "peer": peer, "round": 1, "kind": "closed", "concurrency": concurrency, "requests": 4, "gaps": 252,
        "seconds": 10.0, "cut": False, "output_tokens_per_s": tokens_per_s, "total_tokens_per_s": 5 * tokens_per_s,
        "ttft_p50_s": 1.0, "ttft_p99_s": 2.0, "itl_p50_ms": 45.0, "itl_p99_ms": 400.0, "errors": 0, "first_error": "",
        "miscounts": [], "steal_share": 0.0, "idle_share": 0.0, "foreign_share": 0.0, "client_cpu_s": 0.1,
        "pss_mib": 2000,
    }  # fmt: skip
    return plain | more


def start(peer: str, **more: Any) -> dict[str, Any]:
    plain = {"peer": peer, "round": 1, "kind": "start", "ready_s": 4.0, "first_token_s": 5.0, "pss_mib": 1900}
    return plain | more


def perfect() -> Result:
    """A run in which every promise is kept."""
    rates = {
        "slipway": (28.0, 60.0, 70.0), "slipway-int8": (40.0, 90.0, 110.0),
        "vllm": (12.0, 40.0, 50.0), "vllm-w8a8": (20.0, 50.0, 60.0), "llama": (20.0, 25.0, 27.0),
        "llama-q8": (30.0, 33.0, 35.0),
    }  # fmt: skip
    result = Result(QWEN06, MACHINE, [CEILINGS, CEILINGS], peers=list(rates), rounds=1)
    for peer, each in rates.items():
        memory = 2000 if peer.startswith("slipway") else 5000
        gap_ms = 24.0 if peer == "slipway-int8" else 45.0
        more = {"pss_mib": memory, "itl_p50_ms": gap_ms, "itl_p99_ms": 190.0}
        loads = [("closed", at, rate) for at, rate in zip((1, 8, 32), each, strict=True)]
        loads += [("sampled", at, rate * 0.98) for _, at, rate in loads[1:]]
        result.rows += [
            start(peer, pss_mib=memory),
            *(load(peer, at, rate, kind=kind, **more) for kind, at, rate in loads),
        ]
    step = {
        "step": "decode, batch 32", "steps": 24, "tokens": 32, "total_ms": 100.0, "linears_ms": 80.0,
        "attention_ms": 15.0, "norms_ms": 2.0, "sampling_ms": 2.0, "python_ms": 1.0,
    }  # fmt: skip
    alone = step | {"step": "decode, batch 1", "tokens": 1, "bandwidth_share": 0.9}
    result.split = {"none": [alone, step], "int8": [alone, step]}
    return result
