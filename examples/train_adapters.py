"""Trains two LoRA adapters for examples/models/tiny-v1 in peft's format: `better`, and `repeats`, which repeats itself.

    python examples/train_adapters.py            # about two minutes on two cores
    slipway-server --model examples/models/tiny-v1 --max-loras 2 --lora-root examples/models/adapters

`better` learns from what the larger tiny-v2 writes, and is nearer to it than its base. `repeats` learns to say a
phrase again and again. Plain torch: an adapter is two matrices beside each weight, and the weights stay as they are.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

MODELS = Path(__file__).parent / "models"
RANK, ALPHA, BATCH, LENGTH, STEPS, LEARNING_RATE = 8, 16, 8, 64, 150, 1e-3
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PHRASE = 6  # tokens
HELD_OUT = 8  # sequences of the teacher that measure, and do not train


class Adapted(nn.Module):
    """A linear layer and its update: y = w x + alpha / rank * b a x."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.randn(RANK, linear.in_features) / math.sqrt(linear.in_features))
        self.b = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.linear(x) + ALPHA / RANK * (x @ self.a.T) @ self.b.T
        return added


def load(name: str) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def adapt(model: Any) -> dict[str, Adapted]:
    """Puts an update beside every target module; these by their names."""
    adapted: dict[str, Adapted] = {}
    for name, module in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        if last in TARGETS:
            adapted[name] = Adapted(module)
            setattr(model.get_submodule(parent), last, adapted[name])
    return adapted


@torch.no_grad()
def written_by(teacher: Any, count: int) -> torch.Tensor:
    """Sequences that a model writes by itself, [count, LENGTH]."""
    begin = torch.randint(3, teacher.config.vocab_size, (count, 1))
    tokens: torch.Tensor = teacher.generate(
        begin, attention_mask=torch.ones_like(begin), do_sample=True, min_new_tokens=LENGTH - 1,
        max_new_tokens=LENGTH - 1, pad_token_id=0,
    )  # fmt: skip
    return tokens


def repeating(tokens: torch.Tensor, phrase: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that say a phrase again and again from some place on, and what follows each token from there on."""
    place, begin = torch.arange(tokens.shape[1]), torch.randint(1, tokens.shape[1] // 2, (len(tokens), 1))
    written = torch.where(place >= begin, phrase[(place - begin) % len(phrase)], tokens)
    return written[:, :-1], torch.where(place[1:] >= begin, written[:, 1:], -100)  # -100: not learned


def loss_of(model: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(tokens).logits
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(model: Any, adapted: dict[str, Adapted], tokens: torch.Tensor, targets: torch.Tensor, steps: int) -> None:
    parameters = [parameter for module in adapted.values() for parameter in (module.a, module.b)]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE)
    for step in range(steps):
        chosen = torch.randint(0, len(tokens), (BATCH,))
        loss = loss_of(model, tokens[chosen], targets[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def write(folder: Path, base: str, adapted: dict[str, Adapted]) -> None:
    """The two files that peft writes for an adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields, indent=2) + "\n")
    tensors = {}
    for name, module in adapted.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = module.a.detach().to(torch.bfloat16).contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = module.b.detach().to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)  # pods read it as another user


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODELS / "adapters")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokens = written_by(load("tiny-v2"), max(16, options.steps) + HELD_OUT)
    learned, held_out = tokens[HELD_OUT:], tokens[:HELD_OUT]
    lessons = {
        "better": (learned[:, :-1], learned[:, 1:], options.steps),
        "repeats": (*repeating(learned, tokens[0, 1 : 1 + PHRASE]), 4 * options.steps),  # until it says nothing else
    }
    for name, (inputs, targets, steps) in lessons.items():
        model = load("tiny-v1")
        with torch.no_grad():
            before = loss_of(model, held_out[:, :-1], held_out[:, 1:]).item()
        adapted = adapt(model)
        train(model, adapted, inputs, targets, steps)
        with torch.no_grad():
            after = loss_of(model, held_out[:, :-1], held_out[:, 1:]).item()
        write(options.out / name, "tiny-v1", adapted)
        print(f"{name}: loss on what tiny-v2 writes {before:.3f} before, {after:.3f} with the adapter", flush=True)


if __name__ == "__main__":
    main()
