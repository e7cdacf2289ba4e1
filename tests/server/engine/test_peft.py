"""Adapters against peft itself: its files, its numbers, for every target module of each native family.

peft writes each adapter's folder, and computes with it in transformers; the engine reads the folder, and computes all
of a family's adapters in one batch.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.adapters.loader import AdapterLoader, LoadedAdapter
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.kernels.api import BLOCK_TOKENS, Batch
from slipway_server.kernels.low_rank import AdapterRoom
from slipway_server.models.adapters.folder import AdapterLimits
from slipway_server.models.adapters.targets import parts_of, targets_of
from slipway_server.models.generator import load_generator
from tests.server.engine.test_adapters import Engine
from tests.server.engine.test_families import FOREIGN, NEW_TOKENS, VOCABULARY, make

peft = pytest.importorskip("peft", reason="NOT RUN: peft is not installed")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),  # what peft calls
]

RANK, SLOTS, LENGTH = 5, 16, 33
BOUND = 2e-4  # of the largest logit: sums of float32 in another order
NATIVE = [
    "llama",
    "llama with biases, tied",
    "mistral with a window",
    "qwen2 with windows in some layers",
    "qwen3",
    "phi3",
    "granite",
    "smollm3",
    "gemma",
    "gemma2",
    "gemma3",
]
PLAIN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PACKED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
ALL_OF = [
    {},
    {"use_rslora": True},
    {"use_dora": True},
    {"rank_pattern": {"layers.1.self_attn.o_proj": 2, "down_proj": 3}, "alpha_pattern": {"down_proj": 40}},
]


def configs(family: str) -> list[Any]:
    modules = PACKED if family.startswith("phi3") else PLAIN
    alone = [peft.LoraConfig(r=RANK, lora_alpha=12, target_modules=[name]) for name in modules]
    alone += [peft.LoraConfig(r=RANK, lora_alpha=12, target_modules=modules, **more) for more in ALL_OF]
    return alone


def draw(model: Any, name: str) -> None:
    """Random numbers in place of peft's zeros."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if f".{name}" not in key or "lora_" not in key:
                continue
            if "magnitude" in key:
                parameter.mul_(0.5 + torch.rand(parameter.shape, generator=generator))
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)


def prompts(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, VOCABULARY, (LENGTH,), generator=generator) for _ in range(count)]


def together(tokens: list[torch.Tensor], slots: list[int]) -> Batch:
    """The whole prompts in one batch, with the adapter of each, and all of their logits."""
    blocks = -(-LENGTH // BLOCK_TOKENS)
    tables = torch.arange(len(tokens) * blocks, dtype=torch.int32).view(len(tokens), blocks)
    positions = torch.arange(LENGTH, dtype=torch.int32)
    slot_mapping = (tables[:, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS).flatten()
    first = torch.arange(len(tokens), dtype=torch.int32) * LENGTH
    return Batch(
        ids=torch.cat(tokens),
        positions=positions.repeat(len(tokens)),
        slot_mapping=slot_mapping,
        first=first,
        counts=torch.full_like(first, LENGTH),
        starts=torch.zeros_like(first),
        block_tables=tables,
        rows=torch.arange(len(tokens) * LENGTH),
        adapters=torch.tensor(slots, dtype=torch.int32).repeat_interleave(LENGTH),
    )


@pytest.mark.parametrize("family", NATIVE)
def test_logits_equal_those_of_peft(family: str, tmp_path: Path) -> None:
    assert family not in FOREIGN
    torch.set_num_threads(1)
    base = make(tmp_path / "base", family)
    tokens = prompts(len(configs(family)) + 1)
    with torch.inference_mode():
        exact = [base(tokens[-1][None]).logits[0]]
    model = None
    for number, config in enumerate(configs(family)):
        name = f"a{number}"
        if model is None:
            model = peft.get_peft_model(base, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
        model.set_adapter(name)
        draw(model, name)
        model.save_pretrained(tmp_path / "adapters", selected_adapters=[name])
        with torch.inference_mode():
            exact.insert(-1, model(tokens[number][None]).logits[0])
    assert len({round(float(logits.double().sum()), 4) for logits in exact}) == len(exact)
    room = AdapterRoom(SLOTS, RANK)
    decoder = load_generator(
        tmp_path / "base", checkpoint.read_config(tmp_path / "base"), dtype="float32", quantization="none",
        device="cpu", context_tokens=128, threads=1, adapters=room,
    )  # fmt: skip
    decoder.kernels.reserve(len(tokens) * 2)
    limits = AdapterLimits(RANK, 1 << 20, tmp_path, frozenset({"base"}))
    loader = AdapterLoader(limits, targets_of(decoder.shape), parts_of(decoder.shape), decoder.operations)
    for slot in range(len(exact) - 1):
        loaded = loader.read(f"adapters/a{slot}")
        assert isinstance(loaded, LoadedAdapter), loaded
        for (layer, operation), prepared in loaded.prepared.items():
            decoder.operations[layer][operation].adapt(slot, prepared)
    slots = [*range(len(exact) - 1), -1]
    ours = decoder.logits(together(tokens, slots)).view(len(exact), LENGTH, -1)
    for logits, wanted in zip(ours, exact, strict=True):
        error = (logits - wanted.float()).abs().max() / wanted.abs().max()
        assert error < BOUND, f"off by {error:.1e} of the largest logit"


def test_two_hundred_greedy_answers_equal_those_of_peft(tmp_path: Path) -> None:
    """Of two adapters, one after another in time and side by side in steps; prompts that the other one has had too."""
    torch.set_num_threads(1)
    base = make(tmp_path / "base", "qwen3")
    tokens, wanted, model = torch.stack(prompts(100)), [], None
    for name, more in (("a0", {}), ("a1", {"use_rslora": True, "use_dora": True})):
        config = peft.LoraConfig(r=RANK, lora_alpha=12, target_modules=PLAIN, **more)
        model = model or peft.get_peft_model(base, config, adapter_name=name)
        if name not in model.peft_config:
            model.add_adapter(name, config)
        model.set_adapter(name)
        draw(model, name)
        model.save_pretrained(tmp_path, selected_adapters=[name])
        found = model.generate(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
        )  # fmt: skip
        wanted += found[:, LENGTH:].tolist()
    decoder = load_generator(
        tmp_path / "base", checkpoint.read_config(tmp_path / "base"), dtype="float32", quantization="none",
        device="cpu", context_tokens=128, threads=1, adapters=AdapterRoom(SLOTS, RANK),
    )  # fmt: skip
    decoder.kernels.reserve(257)
    engine = Engine(tmp_path, decoder, rank=RANK)
    params = SamplingParams(NEW_TOKENS, temperature=0.0)
    digests = engine.load_written("a0", "a1")
    requests = [
        Request(f"{number}", tuple(tokens[number % 100].tolist()), params, adapter=digests[number // 100])
        for number in range(200)
    ]
    answers = engine.run(*requests[::2], *requests[1::2])
    ours = [[event.token for event in answers[f"{number}"] if event.token is not None] for number in range(200)]
    differing = [number for number in range(200) if ours[number] != wanted[number]]
    assert not differing, f"{len(differing)} of 200 differ"
    assert len({*map(tuple, ours)}) > 100 and ours[:100] != ours[100:]
