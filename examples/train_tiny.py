"""Trains the two small language models that the demo and the tests serve: tiny-v1 and the better tiny-v2.

    python examples/train_tiny.py            # both, about five minutes on two cores
    python examples/train_tiny.py --only tiny-v1 --out /tmp/models

The text is the King James Bible of Debian's `bible-kjv-text` (public domain: the translation is of 1611). The packages
are downloaded and unpacked into a temporary folder; nothing is installed. The architecture is Qwen3's, so any engine
that loads Qwen3 loads these. `tiny-broken` is made by the same run: its index names a shard that is not there.
"""

import argparse
import json
import math
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CORPUS = "King James Bible, from Debian's bible-kjv-text"
LICENCE = "text: public domain (1611); weights and tokenizer: Apache-2.0, as this repository"
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTEXT_TOKENS, BATCH, VOCABULARY = 512, 4, 2048
HELD_OUT_EVERY = 20


@dataclass(frozen=True)
class Recipe:
    name: str
    hidden: int
    layers: int
    steps: int
    learning_rate: float


RECIPES = (
    Recipe("tiny-v1", hidden=128, layers=3, steps=260, learning_rate=3e-3),
    Recipe("tiny-v2", hidden=192, layers=5, steps=560, learning_rate=2.5e-3),
)


def unpack_corpus(folder: Path) -> str:
    """The reader of the package `bible-kjv` decodes the compressed text of `bible-kjv-text`."""
    subprocess.run(["apt-get", "download", "-q", "bible-kjv", "bible-kjv-text"], cwd=folder, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True)
    reader = [str(folder / "usr/bin/bible"), "-p", str(folder / "usr/lib"), "-l100000", "gen1:1-rev22:21"]
    return str(subprocess.run(reader, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout)


def chapters_of(text: str) -> list[list[str]]:
    """Each chapter is its heading and its verses, without their numbers."""
    chapters: list[list[str]] = []
    for line in text.splitlines():
        verse = re.match(r"\s+\d+ (.*)", line)
        if verse and chapters:
            chapters[-1].append(verse.group(1).strip())
        elif line.strip():
            chapters.append([line.strip()])
    return chapters


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END, START, STOP], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> torch.Tensor:
    # The backend itself: the wrapper warns that a corpus is longer than the model's context.
    return torch.tensor(tokenizer.backend_tokenizer.encode(text).ids)


def plain(chapter: list[str]) -> str:
    return "\n".join(chapter) + END


def chats(chapter: list[str], rng: random.Random) -> str:
    """The user sends a verse, the assistant continues with the next ones: the model learns the template and to end."""
    text, at = "", 1
    while at + 1 < len(chapter):
        answer = " ".join(chapter[at + 1 : at + 1 + rng.randint(1, 3)])
        text += f"{START}user\n{chapter[at]}{STOP}\n{START}assistant\n{answer}{STOP}\n"
        at += rng.randint(2, 4)
    return text + END


def batches(tokens: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
    offsets = torch.arange(CONTEXT_TOKENS)
    for _ in range(steps):
        starts = torch.randint(0, len(tokens) - CONTEXT_TOKENS, (BATCH, 1))
        yield tokens[starts + offsets]


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one token."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def build(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.hidden * 5 // 2,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.hidden // 32,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=_id(tokenizer, END),
        eos_token_id=_id(tokenizer, STOP),
        pad_token_id=_id(tokenizer, END),
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids([STOP, END])
    return model


def train(recipe: Recipe, model: Qwen3ForCausalLM, tokens: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.05)
    warmup = 30
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warmup, 0.05 + 0.475 * (1 + math.cos(math.pi * s / recipe.steps)))
    )
    started = time.monotonic()
    for step, batch in enumerate(batches(tokens, recipe.steps)):
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            seconds = time.monotonic() - started
            print(f"{recipe.name} step {step}/{recipe.steps} loss {loss.item():.3f} {seconds:.0f} s", flush=True)


@torch.inference_mode()
def held_out_nats(model: Qwen3ForCausalLM, tokens: torch.Tensor) -> float:
    """Mean negative log-likelihood per token, in windows of the whole context."""
    windows = tokens[: len(tokens) // CONTEXT_TOKENS * CONTEXT_TOKENS].view(-1, CONTEXT_TOKENS)
    losses = (model(window, labels=window).loss.item() * len(window) for window in windows.split(8))
    return float(sum(losses) / len(windows))


def write_readme(folder: Path, recipe: Recipe, metrics: dict[str, object]) -> None:
    folder.joinpath("metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    folder.joinpath("README.md").write_text(
        f"# {recipe.name}\n\nA language model of {metrics['parameters']:,} parameters (Qwen3 architecture, "
        f"{recipe.layers} layers of {recipe.hidden}, float32, context {CONTEXT_TOKENS} tokens), made by "
        "`examples/train_tiny.py` to exercise the server and its rollouts. "
        "It knows how the King James Bible sounds and nothing else.\n\n"
        f"Corpus: {CORPUS}. Licence: {LICENCE}.\n\nHeld-out perplexity: {metrics['held_out_perplexity']} per token, "
        f"{metrics['held_out_bits_per_byte']} bits per byte (every {HELD_OUT_EVERY}th chapter was held out).\n"
    )


def write_broken(folder: Path, good: Path) -> None:
    """A checkpoint whose upload was cut: the index names two shards and one of them is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        shutil.copyfile(good / name, folder / name)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file({"model.norm.weight": torch.ones(128)}, folder / first)
    (folder / first).chmod(0o644)
    index = {
        "metadata": {"total_size": 128 * 4 + VOCABULARY * 128 * 4},
        "weight_map": {"model.norm.weight": first, "model.embed_tokens.weight": second},
    }
    folder.joinpath("model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    folder.joinpath("README.md").write_text(
        f"# tiny-broken\n\nA checkpoint that cannot load, on purpose: its index names `{second}`, which is missing. "
        "The demo rolls it out as v3 and watches it being rolled back.\n"
    )


def make(recipe: Recipe, out: Path, chapters: list[list[str]]) -> None:
    held_out = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY == 7]
    kept = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY != 7]
    tokenizer = train_tokenizer([plain(c) for c in kept])
    rng = random.Random(1611)
    documents = [plain(c) for c in kept] + [chats(c, rng) for c in kept]
    rng.shuffle(documents)
    tokens = encode(tokenizer, "".join(documents))
    torch.manual_seed(1611)
    model = build(recipe, tokenizer)
    started = time.monotonic()
    train(recipe, model.train(), tokens)
    seconds = time.monotonic() - started
    unseen = "".join(plain(c) for c in held_out)
    unseen_tokens = encode(tokenizer, unseen)
    nats = held_out_nats(model.eval(), unseen_tokens)
    folder = out / recipe.name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # transformers saves weights for their owner only; pods read them as another user
    metrics: dict[str, object] = {
        "held_out_perplexity": round(math.exp(nats), 2),
        "held_out_bits_per_byte": round(nats / math.log(2) * len(unseen_tokens) / len(unseen.encode()), 3),
        "parameters": model.num_parameters(),
        "train_steps": recipe.steps,
        "train_tokens": recipe.steps * BATCH * CONTEXT_TOKENS,
        "train_seconds": round(seconds),
        "corpus": CORPUS,
        "licence": LICENCE,
    }
    write_readme(folder, recipe, metrics)
    print(json.dumps({recipe.name: metrics}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models", help="folder for the models")
    parser.add_argument("--only", choices=[r.name for r in RECIPES], help="train one of them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chapters = chapters_of(unpack_corpus(Path(folder)))
    for recipe in RECIPES:
        if options.only in (None, recipe.name):
            make(recipe, options.out, chapters)
    if options.only is None:
        write_broken(options.out / "tiny-broken", options.out / "tiny-v1")


if __name__ == "__main__":
    main()
