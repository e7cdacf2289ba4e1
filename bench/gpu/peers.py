"""Other engines on the same device, the same shape and the same requests, each with random weights of its own."""

import json
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.engine.shapes import Shape
from bench.gpu.roofline import config_of


class Unavailable(Exception):
    """Why a peer takes no part: one sentence."""


def prompts(batch: int, prompt_tokens: int) -> list[list[int]]:
    return [[600 + (number * 31 + place * 7) % 4000 for place in range(prompt_tokens)] for number in range(batch)]


def transformers(shape: Shape, device: str, batch: int, prompt_tokens: int, new_tokens: int) -> float:
    """Its own continuous batching (`generate_batch`), output tokens per second. Raises Unavailable."""
    if not find_spec("transformers"):
        raise Unavailable("transformers is not installed.")
    import transformers as library

    fields: dict[str, Any] = config_of(shape)
    config = library.AutoConfig.for_model(**fields)
    with torch.device(device):
        model = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.eval()
    rules = library.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def answer(batch_of_prompts: list[list[int]]) -> int:
        found = model.generate_batch(batch_of_prompts, generation_config=rules, progress_bar=False)
        return sum(len(each.generated_tokens) for each in found.values())

    answer(prompts(2, prompt_tokens))
    return _rate(lambda: answer(prompts(batch, prompt_tokens)))


def vllm(shape: Shape, device: str, batch: int, prompt_tokens: int, new_tokens: int) -> float:
    """Its offline engine with its own defaults, output tokens per second. Raises Unavailable."""
    if not find_spec("vllm"):
        raise Unavailable("vllm is not installed.")
    library: Any = __import__("vllm")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_of(shape)))
        engine = library.LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False,
            gpu_memory_utilization=0.8, max_model_len=prompt_tokens + new_tokens,
        )  # fmt: skip
    rules = library.SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True, detokenize=False)

    def answer(batch_of_prompts: list[list[int]]) -> int:
        found = engine.generate([{"prompt_token_ids": each} for each in batch_of_prompts], rules, use_tqdm=False)
        return sum(len(each.outputs[0].token_ids) for each in found)

    answer(prompts(2, prompt_tokens))
    return _rate(lambda: answer(prompts(batch, prompt_tokens)))


PEERS: dict[str, Callable[[Shape, str, int, int, int], float]] = {"transformers": transformers, "vllm": vllm}


def _rate(answer: Callable[[], int]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    tokens = answer()
    return tokens / (time.perf_counter() - began)
