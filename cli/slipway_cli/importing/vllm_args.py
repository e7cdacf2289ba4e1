"""Images and arguments of vLLM: those that a ModelDeployment has fields for, the operator writes itself (pure)."""

import re

from slipway_cli.importing.fields import Unusable
from slipway_cli.importing.manifest import Imported, put_name

IMAGE, OLDEST = "vllm/vllm-openai:v0.32.0", (0, 18)
_TAG = re.compile(r"/?vllm[-a-z]*:v?(?P<major>[0-9]{1,4})\.(?P<minor>[0-9]{1,4})([-.+][-.+A-Za-z0-9]*)?$")
_VALUE = {
    "--max-model-len": "model.maxModelLen",
    "--tensor-parallel-size": "engine.parallelism.tensor",
    "--pipeline-parallel-size": "engine.parallelism.pipeline",
    "--tool-call-parser": "engine.toolParser",
    "--reasoning-parser": "engine.reasoningParser",
}
_NUMBERS = frozenset({"--max-model-len", "--tensor-parallel-size", "--pipeline-parallel-size"})
_OURS = frozenset(
    {"--model", "--served-model-name", "--host", "--port", "--download-dir", "--revision", "--enable-auto-tool-choice"}
)
_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}
_FLAGS = frozenset({"--enable-auto-tool-choice"})


def put_image(made: Imported, image: str, path: str) -> None:
    """Set spec.engine to vLLM with this image; with another one where a ModelDeployment could not have it."""
    made.put("engine.type", "vllm")
    tag = _TAG.search(image)
    if tag and (int(tag["major"]), int(tag["minor"])) >= OLDEST:
        made.put("engine.image", image)
        return
    made.put("engine.image", IMAGE)
    made.notes.append(
        f"{path}: {image[:200] or 'none'} does not say that it has vLLM 0.18 or later, which ends running requests "
        f"before it stops: {IMAGE} takes its place; name yours, with spec.engine.version beside another tag"
    )


def put_args(made: Imported, args: list[str], path: str) -> str | None:
    """Set the fields of the known arguments, and spec.engine.args of the others; returns the model, if they name it.

    Raises:
        Unusable: a number is none.
    """
    kept: list[str] = []
    model = None
    words = _split(args)
    while words:
        word = words.pop(0)
        name = _SHORT.get(word, word)
        if name not in _VALUE and name not in _OURS:
            kept.append(word)
            continue
        if name in _FLAGS:
            continue
        value = words.pop(0) if words and not words[0].startswith("--") else ""
        if name == "--model":
            model = value
        elif name == "--served-model-name":
            put_name(made, value, path)
        elif name in _VALUE:
            if name in _NUMBERS and not re.fullmatch(r"[0-9]{1,8}", value):
                raise Unusable(f"{path}: {name} {value[:20]!r} is no number")
            made.put(_VALUE[name], int(value) if name in _NUMBERS else value)
    made.put("engine.args", kept)
    return model


def _split(args: list[str]) -> list[str]:
    """One word for each argument: `--name=value` is two."""
    return [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--") else [arg])]
