"""Models with random weights and a tokenizer made for counting, in the cache; the same files on every machine."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.engine.environments import Unavailable, llama_program, llama_tree, root
from bench.engine.shapes import VISIBLE_FROM, Shape
from bench.engine.workload import words
from devcluster.errors import DevclusterError
from devcluster.places import appears_whole
from devcluster.processes import run
from devcluster.steps.progress import run_steps
from devcluster.steps.schedule import Step

RECIPE = 1  # goes up with every change of what is made here
LARGE = 2e9  # parameters: of such a model nothing is kept that another file was made of
END = "<|endoftext|>"


def ensure_model(shape: Shape, console: Console) -> Path:
    """A Hugging Face folder in bfloat16."""
    folder = root() / "models" / f"{shape.name}-{RECIPE}"
    # In a process of its own: torch and the float32 weights leave this one as small as it was.
    command = [sys.executable, "-m", "bench.engine.models", shape.name, str(folder)]
    make = Step(f"make {shape.name} with random weights", folder.exists, lambda: run(command, env=_no_hub()))
    run_steps([make], console)
    return folder


def ensure_w8a8(shape: Shape, model: Path, console: Console) -> Path:
    """The same weights in int8 with activations in int8, as vLLM reads them. Raises Unavailable."""
    folder = model.with_name(f"{model.name}-w8a8")
    command = [sys.executable, "-m", "bench.engine.w8a8", str(model), str(folder)]
    make = Step(f"convert {shape.name} to W8A8", folder.exists, lambda: run(command, env=_no_hub()))
    try:
        run_steps([make], console)
    except DevclusterError as error:
        raise Unavailable(f"The model could not be converted: {str(error).splitlines()[-1].strip()}") from error
    return folder


def ensure_gguf(shape: Shape, model: Path, kind: str, llama: Path, console: Console) -> Path:
    """The same weights for llama.cpp: `bf16`, or `q8_0` made of it. Raises Unavailable."""
    plain, wanted = (model.with_name(f"{model.name}-{name}.gguf") for name in ("bf16", kind))
    converter = [sys.executable, str(Path(__file__).with_name("to_gguf.py")), str(llama_tree(llama)), str(model)]
    quantize = str(llama_program(llama, "llama-quantize"))

    def convert() -> None:
        with appears_whole(plain) as path:
            run([*converter, str(path), "bf16"], env=_no_hub())

    def shrink() -> None:
        with appears_whole(wanted) as path:
            run([quantize, str(plain), str(path), kind])
        if shape.parameters > LARGE:
            plain.unlink()

    try:
        run_steps([Step(f"convert {shape.name} to GGUF", lambda: plain.exists() or wanted.exists(), convert)], console)
        run_steps([Step(f"convert {shape.name} to {kind}", wanted.exists, shrink)], console)
    except DevclusterError as error:
        raise Unavailable(f"The model could not be converted: {str(error).splitlines()[-1].strip()}") from error
    return wanted


def tokenizer_json(vocabulary: int) -> dict[str, Any]:
    """Byte-level BPE in which each word of the workload is one token, and every other id is visible ASCII too.

    A word is reached by merging one letter at a time to its front part, so any implementation of BPE finds the same
    tokens, and llama.cpp's `gpt-2` pre-tokenizer splits the text alike. Ids below VISIBLE_FROM are the end of text and
    single bytes: the models never sample them. Ids that are left over are numbers after a letter: no merge makes them.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {END: 0} | {letter: number for number, letter in enumerate(alphabet, 1)}
    ids |= {f"Ġx{number}": number for number in range(len(ids), VISIBLE_FROM)}
    merges: dict[tuple[str, str], None] = {}
    for word in words():
        for end in range(len(word)):
            front, letter = "Ġ" + word[:end], word[end]
            merges[front, letter] = None
            ids.setdefault(front + letter, len(ids))
    ids |= {f"Ġz{number}": number for number in range(len(ids), vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    return made


def make(shape: Shape, folder: Path) -> None:
    """Writes the folder. Greedy sampling meets neither the end nor a byte: their rows of the embedding are zero."""
    import torch
    from tokenizers import Tokenizer

    transformers: Any = import_module("transformers")  # untyped

    config = transformers.AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        intermediate_size=shape.inner,
        max_position_embeddings=shape.context_tokens,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight[:VISIBLE_FROM] = 0
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(tokenizer_json(shape.vocabulary))),
        eos_token=END,
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
        model_max_length=shape.context_tokens,
    )
    with appears_whole(folder) as path:
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)


def warm(folder_or_file: Path) -> None:
    """Into the page cache: what is timed is the start, not the disk."""
    for path in [folder_or_file] if folder_or_file.is_file() else sorted(folder_or_file.iterdir()):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def _no_hub() -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


if __name__ == "__main__":
    from bench.engine.shapes import SHAPES

    make(SHAPES[sys.argv[1]], Path(sys.argv[2]))
