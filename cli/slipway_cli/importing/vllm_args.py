"""Images and arguments of vLLM: those that a ModelDeployment has fields for, the operator writes itself (pure)."""

import json
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
    "--max-loras": "adapters.maxLoaded",
    "--max-lora-rank": "adapters.maxRank",
}
_NUMBERS = frozenset(
    {"--max-model-len", "--tensor-parallel-size", "--pipeline-parallel-size", "--max-loras", "--max-lora-rank"}
)
_SUFFIXES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}
_DTYPES = {"half": "float16", "float": "float32"} | {one: one for one in ("auto", "float32", "bfloat16", "float16")}
_FLAGS = frozenset({"--enable-auto-tool-choice", "--enable-lora", "--headless"})
_IGNORED = frozenset(  # the operator decides these, and they mean nothing else
    {"--host", "--port", "--uds", "--download-dir", "--enable-auto-tool-choice", "--shutdown-timeout"}
)
_REFUSED = frozenset(  # what clients or other pods would notice
    {"--config", "--api-key", "--root-path", "--ssl-keyfile", "--ssl-certfile", "--runner", "--task", "--headless"}
    | {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--max-cpu-loras", "--lora-modules"}
    | {"--fully-sharded-loras", "--lora-extra-vocab-size", "--lora-dtype"}
)
_OURS = frozenset(
    {"--model", "--served-model-name", "--revision", "--dtype", "--enable-lora", *_VALUE, *_IGNORED, *_REFUSED}
)
_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}
# Both parsers of vLLM take a unique beginning of a flag for it; the API refuses those of what the operator writes.
_OWNED = tuple(one for one in _OURS if "lora" not in one and one not in ("--task", "--download-dir", "--revision"))
_POOLING = frozenset({"embed", "embedding", "pooling"})


def put_image(made: Imported, image: str, path: str) -> None:
    """Set spec.engine to vLLM with this image; with another one where a ModelDeployment could not have it."""
    made.put("engine.type", "vllm")
    tag = _TAG.search(image)
    if tag and (int(tag["major"]), int(tag["minor"])) >= OLDEST:
        made.put("engine.image", image, path)
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
        name = _flag(word)
        if name not in _OURS:
            whole = name.partition(".")[0]
            if len(whole) > 2 and whole.startswith("--") and any(owned.startswith(whole) for owned in _OWNED):
                raise Unusable(f"{path}: {word[:60]} is no argument of its own: write it in full")
            kept.append(word)
            continue
        value = "" if name in _FLAGS or not words or words[0].startswith("--") else words.pop(0)
        if name == "--model":
            model = value
        elif name == "--served-model-name":
            put_name(made, value, path)
            while words and not words[0].startswith("-"):
                made.notes.append(f"{path}: {words.pop(0)[:100]} is a second name: add a ModelRoute for it")
        elif name == "--revision":
            made.put("model.revision", value, path)
        elif name == "--lora-modules":
            _lora_modules(made, [value, *_values(words)], path)
        else:
            _field(made, name, value, path)
    made.put("engine.args", kept, path)
    return model


def _field(made: Imported, name: str, value: str, path: str) -> None:
    if name in _VALUE:
        made.put(_VALUE[name], _number(name, value, path) if name in _NUMBERS else value, path)
    elif name == "--enable-lora":
        made.spec.setdefault("adapters", {}).setdefault("maxLoaded", 16)
    elif name == "--dtype":
        if value not in _DTYPES:
            raise Unusable(f"{path}: {name} {value[:20]!r} is none of {', '.join(_DTYPES)}")
        made.put("model.dtype", _DTYPES[value], path)
    elif name in ("--task", "--runner") and value in _POOLING:
        made.put("model.task", "embed", path)
    elif name in ("--task", "--runner") and value in ("auto", "generate"):
        return
    elif name in _REFUSED:
        made.notes.append(f"{path}: {name} {value[:100]}".rstrip() + " is not mapped")


def _number(name: str, value: str, path: str) -> int:
    """A number as vLLM reads it, with 1k or 2K, too. Raises Unusable."""
    match = re.fullmatch(r"(?P<number>[0-9]{1,8})(?P<suffix>[kKmMgG]?)", value, re.ASCII)
    if not match or (match["suffix"] and name != "--max-model-len"):
        raise Unusable(f"{path}: {name} {value[:20]!r} is no number")
    return int(match["number"]) * _SUFFIXES.get(match["suffix"], 1)


def _lora_modules(made: Imported, modules: list[str], path: str) -> None:
    """Those that the hub has go into `loras`, for ModelAdapters; those of a folder in the image cannot."""
    for module in modules:
        try:
            parsed = json.loads(module) if module.startswith("{") else None
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            name, place = str(parsed.get("name", "")), str(parsed.get("path", ""))
        else:
            name, _, place = module.partition("=")
        uri = f"hf://{place}" if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", place, re.ASCII) else place
        if "://" in uri and name:
            made.loras.append((name, uri, path))
        else:
            made.notes.append(f"{path}: --lora-modules {module[:100]} is a folder: upload it, for a ModelAdapter")


def _values(words: list[str]) -> list[str]:
    values = []
    while words and not words[0].startswith("-"):
        values.append(words.pop(0))
    return values


def _flag(word: str) -> str:
    """The name as vLLM reads it: _ is -, and the nested names after a point are of the same flag."""
    name = _SHORT.get(word, word)
    return name.replace("_", "-") if name.startswith("--") else name


def _split(args: list[str]) -> list[str]:
    """One word for each argument: `--name=value` is two, and so are `-tp=2` and `-tp2`."""
    words = list[str]()
    for arg in args:
        short = re.fullmatch(r"(-tp|-pp)=?([0-9]+)", arg, re.ASCII)
        words += short.groups() if short else arg.split("=", 1) if arg.startswith("--") else [arg]
    return words
