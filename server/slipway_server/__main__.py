"""`slipway-server`: serves a language model. For the task of a classic model its process becomes slipway-predict.

Pods of every release begin with this command and name the task, so it stays the one for both.
"""

import importlib.util
import os
import sys

from slipway_process import logs
from slipway_process.termination import DATA_ERROR, Parser, last_words, needs_torch

from . import environment

CLASSIC = ("predict", "classify", "rerank")
LIBRARIES = ["torch", "transformers", "tokenizers", "safetensors", "jinja2", "llguidance"]  # of language models


def main() -> None:
    task = _task(sys.argv[1:])
    if task in CLASSIC:
        os.execv(sys.executable, (sys.executable, "-P", "-m", "slipway_predict", *sys.argv[1:]))
    if missing := absent():
        logs.configure("info")
        last_words(needs_torch(f"--task {task}", "server", f"without {', '.join(missing)}"))
        sys.exit(DATA_ERROR)
    from .language import main as serve  # not before it is clear that they are here

    serve()


def absent() -> list[str]:
    """The packages of language models that this interpreter does not find; none of them is imported."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def _task(arguments: list[str]) -> str:
    parser = Parser(prog="slipway-server", add_help=False, allow_abbrev=False)
    parser.add_argument("--task", default=environment.task())
    return str(parser.parse_known_args(arguments)[0].task)


if __name__ == "__main__":
    main()
