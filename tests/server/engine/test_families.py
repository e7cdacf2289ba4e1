"""Every family of decoders against transformers: the same tokens, alone and in batches, from a saved folder.

Tiny random models of each family, with the features that distinguish it switched on.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.models.generator import load_generator, self_test

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VOCABULARY, CONTEXT, NEW_TOKENS = 160, 128, 12
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "partial_rotary_factor": 1.0,
}
# Family, and what its config has beside SHAPE. Windows are shorter than the prompts.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3}),
    "llama with biases, tied": ("Llama", {"attention_bias": True, "mlp_bias": False, "tie_word_embeddings": True}),
    "mistral with a window": ("Mistral", {"sliding_window": 24}),
    "qwen2 with windows in some layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "phi3": ("Phi3", {"sliding_window": None}),
    "phi3 with longrope": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 256}),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 32}),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 16,
            "sliding_window": 16,
            "query_pre_attn_scalar": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    # Not built in: transformers' own modules over our cache.
    "starcoder2": ("Starcoder2", {"sliding_window": 24}),
    "olmo2": ("Olmo2", {}),
    "gpt_neox": ("GPTNeoX", {"num_key_value_heads": 4}),
}
FOREIGN = {"starcoder2", "olmo2", "gpt_neox"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make(folder: Path, family: str) -> Any:
    """A random model, saved; weights are large enough that answers differ from prompt to prompt."""
    name, more = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**(SHAPE | more))
    torch.manual_seed(sum(map(ord, family)))
    class_name = "Gemma3ForCausalLM" if name == "Gemma3Text" else f"{name}ForCausalLM"
    model = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    return model


def prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(7)
    sizes = [1, 2, 15, 16, 17, 31, 33, 50, 64, 90]
    return [tuple(torch.randint(3, VOCABULARY, (size,), generator=generator).tolist()) for size in sizes]


def expected(model: Any) -> list[list[int]]:
    answers = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


def answers(engine: EngineCore, each: Callable[[int], int] = lambda index: 0) -> list[list[int]]:
    """Of all prompts at once; `each` is the number of steps after which the n-th joins."""
    found: dict[str, list[int]] = {str(index): [] for index in range(len(prompts()))}
    left = list(enumerate(prompts()))
    steps = 0
    while left or engine.scheduler.busy:
        for index, prompt in [item for item in left if each(item[0]) <= steps]:
            engine.submit(Request(str(index), prompt, SamplingParams(NEW_TOKENS, temperature=0.0)))
            left.remove((index, prompt))
        for event in engine.step().events:
            assert event.error is None
            if event.token is not None:
                found[event.id].append(event.token)
        steps += 1
    engine.scheduler.check()
    return list(found.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = make(tmp_path, family)
    wanted = expected(model)
    assert len({tuple(answer) for answer in wanted}) > 5, "the models must give different answers"
    config = json.loads((tmp_path / "config.json").read_text())
    decoder = load_generator(
        tmp_path, config, dtype="float32", quantization="none", device="cpu", context_tokens=CONTEXT, threads=1
    )
    assert decoder.kernels.name == ("transformers" if family in FOREIGN else "torch")
    whole = SchedulerConfig(slots=16, step_tokens=512, kv_tokens=2048)
    runner = DecoderRunner(decoder, slots=16, context_tokens=CONTEXT, blocks=64)
    self_test(decoder, VOCABULARY)
    engine = EngineCore(Scheduler(whole, hash_key=bytes(32)), runner)
    assert answers(engine) == wanted
    # Once more: beginnings are known by now.
    assert answers(engine) == wanted and engine.scheduler.prefix_hits > 0
    # In parts of odd sizes, joining one after another, with few blocks.
    engine = EngineCore(Scheduler(SchedulerConfig(slots=5, step_tokens=21, kv_tokens=160), hash_key=bytes(32)), runner)
    assert answers(engine, each=lambda index: index // 2) == wanted
