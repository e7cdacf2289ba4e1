"""llama.cpp's own converter, with GPT-2's splitting of text for our tokenizer: it knows others by a hash only.

It would import sentencepiece to find out that our model has no such file; a stub in its place prevents that.

python to_gguf.py LLAMA_CPP_TREE MODEL_FOLDER OUT.gguf bf16
"""

import runpy
import sys
from importlib import import_module
from typing import NoReturn


def main(tree: str, model: str, out: str, kind: str) -> None:
    sys.path[:0] = [tree, f"{tree}/gguf-py"]
    for found in vars(import_module("conversion.base")).values():
        if isinstance(found, type) and "get_vocab_base_pre" in vars(found):
            found.get_vocab_base_pre = lambda *_: "gpt-2"  # type: ignore[attr-defined]
            found._create_vocab_sentencepiece = no_sentencepiece  # type: ignore[attr-defined]
    sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", out, "--outtype", kind]
    runpy.run_path(f"{tree}/convert_hf_to_gguf.py", run_name="__main__")


def no_sentencepiece(*_: object) -> NoReturn:
    raise FileNotFoundError("the tokenizer is byte-level BPE")


if __name__ == "__main__":
    main(*sys.argv[1:])
