"""Whether the engine's greedy tokens on the device are those of transformers, in float32, on the two tiny models."""

from pathlib import Path
from typing import Any

import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels.api import BLOCK_TOKENS
from slipway_server.models.generator import load_generator, self_test
from slipway_server.models.loader import load

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
NAMES = ("tiny-v1", "tiny-v2")
LENGTHS = (1, 2, 7, 31, 32, 33, 64, 100, 127, 128, 129, 200, 255, 300, 400, 450)
NEW_TOKENS, CONTEXT, SLOTS = 32, 512, 8


def equal_share(name: str, device: str) -> float:
    """Of prompts whose whole answer is the same, beside each other and joining late. 1 is what is promised."""
    folder = MODELS / name
    config = checkpoint.read_config(folder)
    prompts = _prompts(int(config["vocab_size"]))
    ours, theirs = _ours(folder, config, device, prompts), _theirs(folder, device, prompts)
    return sum(one == other for one, other in zip(ours, theirs, strict=True)) / len(prompts)


def _prompts(vocabulary: int) -> list[tuple[int, ...]]:
    random = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(3, vocabulary, (size,), generator=random).tolist()) for size in LENGTHS]


def _ours(folder: Path, config: dict[str, Any], device: str, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    decoder = load_generator(
        folder, config, dtype="float32", quantization="none", device=device, context_tokens=CONTEXT, threads=1
    )
    blocks = SLOTS * CONTEXT // BLOCK_TOKENS
    runner = DecoderRunner(decoder, slots=SLOTS, context_tokens=CONTEXT, blocks=blocks)
    self_test(decoder, int(config["vocab_size"]))
    # Steps of few tokens: prompts go in by parts, beside those that decode, and slots are taken one after the other.
    engine = EngineCore(
        Scheduler(SchedulerConfig(SLOTS, 96, blocks * BLOCK_TOKENS, BLOCK_TOKENS), hash_key=bytes(32)), runner
    )
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    for number, prompt in enumerate(prompts):
        engine.submit(Request(str(number), prompt, SamplingParams(NEW_TOKENS, temperature=0.0)))
    while engine.scheduler.busy:
        for event in engine.step().events:
            assert event.error is None, event.error
            if event.token is not None:
                answers[event.id].append(event.token)
    return list(answers.values())


def _theirs(folder: Path, device: str, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    model: Any = load(folder, task="generate", dtype="float32", device=device)
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=device)
        answer = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        found.append(answer[0, len(prompt) :].tolist())
    return found
