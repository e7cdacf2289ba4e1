"""What a model is by its config.json: a generator, an encoder of text, or nothing that is served here. Pure.

Nothing is guessed: a model that is neither a known encoder nor a text-only decoder is refused with a sentence.
"""

import re
from collections.abc import Iterator
from typing import Any

from slipway_process.model_folder import Config
from slipway_process.model_folder.quantization.fields import NotReadable
from slipway_process.model_folder.quantization.reading import FIELDS, method_of, quantization_of

GENERATE, EMBED = "generate", "embed"

# Encoders of text whose hidden states are pooled into vectors, by their model_type in transformers.
ENCODERS = frozenset(
    {"albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie"}
    | {"eurobert", "megatron-bert", "mobilebert", "modernbert", "mpnet", "nystromformer"}
    | {"rembert", "roberta", "roberta-prelayernorm", "roformer", "squeezebert", "xlm-roberta", "xlm-roberta-xl"}
)
# Decoders that can be embedding models: with sentence-transformers' modules.json, or when the task is given.
EMBEDDING_DECODERS = frozenset({"gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"})

# Fields of a config.json that describe a part of the model for images or sound.
_OTHER_MODALITIES = (
    "vision_config",
    "audio_config",
    "speech_config",
    "visual",
    "vision_tower",
    "mm_vision_tower",
    "vit_config",
)
TEXT_CLASSIFIER = "ForSequenceClassification"
_CLASSES = {
    "ForConditionalGeneration": "it reads images or sound beside text, or is an encoder with a decoder",
    TEXT_CLASSIFIER: "it is a classifier or a reranker, which encoders are with task rerank or classify",
    "ForTokenClassification": "it is a classifier of tokens",
    "ForQuestionAnswering": "it marks answers in a text",
    "ForImageClassification": "it is a classifier of images",
    "ForAudioClassification": "it is a classifier of sound",
    "ForCTC": "it recognises speech",
    "ForSpeechSeq2Seq": "it recognises speech",
}
_SERVED = "this server serves models that generate text (…ForCausalLM) and encoders of text"
# Decoders of transformers that are known to run over this engine's cache: a test runs a small one of each.
TESTED = frozenset(
    {"cohere", "deepseek_v2", "gpt2", "gpt_neox", "granitemoe", "mixtral", "olmo", "olmo2", "opt", "qwen3_moe"}
    | {"starcoder2"}
)
# Decoders that do not run over this engine's cache, and why.
_OWN_ATTENTION = "computes attention in a way of its own in transformers, which does not take this engine's cache"
INCOMPATIBLE = {
    "bloom": _OWN_ATTENTION,
    "falcon": _OWN_ATTENTION,
    "mamba": "has no attention, and this engine keeps nothing but keys and values",
    "mpt": _OWN_ATTENTION,
    "stablelm": _OWN_ATTENTION,
}


class NotServable(Exception):
    """Why a model is not served: one sentence for a person."""


def task_of(config: Config, *, requested: str = "auto", pooled: bool = False) -> str:
    """The task that the model is served for: `generate` or `embed`.

    Args:
        requested: the task that the user named, or `auto`.
        pooled: whether the folder declares how its vectors are pooled (sentence-transformers' modules.json).

    Raises:
        NotServable: for weights that cannot be read, and for models that are neither generators nor encoders of text.
    """
    refuse_unread_quantization(config)
    _refuse_other_modalities(config)
    name, kind = _architecture(config), str(config.get("model_type"))
    generates = name.endswith(("ForCausalLM", "LMHeadModel")) and not name.endswith("WithLMHeadModel")
    embeds = _embeds(name, kind, pooled=pooled or requested == EMBED)
    if requested == "auto":
        requested = EMBED if embeds and (pooled or not generates) else GENERATE
    if requested == EMBED:
        refuse_quantized(config)
    if requested == EMBED and not embeds:
        raise NotServable(f"{_describe(name, kind)} is no encoder of text that this server knows: {_list_encoders()}")
    if requested == GENERATE and name and not generates:
        raise NotServable(f"{_describe(name, kind)} generates no text: {_SERVED}")
    if requested == GENERATE and not name:
        raise NotServable(f"config.json of model_type {kind!r} names no architectures: {_SERVED}")
    return requested


def is_text_classifier(config: Config) -> bool:
    """Whether the model is a classifier of texts or a reranker that a server of classic models knows."""
    names = config.get("architectures")
    named = isinstance(names, list) and any(str(name).endswith(TEXT_CLASSIFIER) for name in names)
    return named and str(config.get("model_type")) in ENCODERS and not custom_code(config)


def refuse_quantized(config: Config) -> None:
    """Raises NotServable for quantized weights of any kind."""
    for field, part in _parts(config):
        if part:
            raise NotServable(quantized(method_of(part), field))


def refuse_unread_quantization(config: Config) -> None:
    """Raises NotServable for quantized weights that generators cannot be read from. Other weights are fine."""
    for part in (config.get("text_config"), config.get("llm_config")):
        if isinstance(part, dict):
            refuse_quantized(part)
    if config.get("quantization"):
        raise NotServable(quantized(method_of(config["quantization"]), "quantization"))
    try:
        quantization_of(config)
    except NotReadable as reason:
        raise NotServable(
            f"its weights are quantized with {reason} (quantization_config): take a repository with one of these, or "
            "with float32, bfloat16 or float16 weights"
        ) from None


def _parts(config: Config) -> Iterator[tuple[str, Any]]:
    for part in (config, config.get("text_config"), config.get("llm_config")):
        for field in FIELDS:
            yield field, part.get(field) if isinstance(part, dict) else None


def quantized(method: str, source: str) -> str:
    """The sentence that refuses weights quantized with `method`; `source`: the file or field that says so."""
    return (
        f"its weights are quantized with {method} ({source}), which this server cannot read: take the repository with "
        "float32, bfloat16 or float16 weights"
    )


def custom_code(config: Config) -> list[str]:
    """The names of Python classes in the folder that `auto_map` lists for loading. Their code is never run."""
    given = config.get("auto_map")
    values = given.values() if isinstance(given, dict) else []
    flat = [name for value in values for name in (value if isinstance(value, list) else [value]) if name]
    return sorted({str(name)[:128] for name in flat})


def incompatibility(config: Config) -> str | None:
    """Why transformers' own modules cannot run over this engine's cache; None if nothing is known against it."""
    kind = str(config.get("model_type"))
    if kind in INCOMPATIBLE:
        return f"model_type {kind!r} {INCOMPATIBLE[kind]}"
    code = custom_code(config)
    if code and kind not in TESTED:
        return f"model_type {kind[:64]!r} needs code of the folder, which is never run ({code[0]})"
    for rope in _ropes(config):
        rope_type = str(rope.get("rope_type") or rope.get("type"))
        if rope_type in ("dynamic", "longrope", "su"):  # `su`: an old name of longrope
            return f"its rotary embedding ({rope_type}) depends on the longest request of a step"
    return None


def _ropes(config: Config) -> list[Config]:
    found = [config.get("rope_scaling"), config.get("rope_parameters")]
    nested = [value for rope in found if isinstance(rope, dict) for value in rope.values()]
    return [rope for rope in (*found, *nested) if isinstance(rope, dict)]


# --- class names ------------------------------------------------------------------------------------------------------


def _architecture(config: Config) -> str:
    found = config.get("architectures") or [""]
    if not isinstance(found, list) or not isinstance(found[0], str):
        raise NotServable("architectures in config.json is not a list of names")
    return found[0]


def _refuse_other_modalities(config: Config) -> None:
    name, kind = _architecture(config), str(config.get("model_type"))
    for suffix, reason in _CLASSES.items():
        if name.endswith(suffix):
            raise NotServable(f"{_describe(name, kind)} is not served, {reason}: {_SERVED}")
    task = re.search(r"For[A-Z]\w*$", name)
    if task and not name.endswith(("ForCausalLM", "ForMaskedLM", "ForPreTraining")):
        raise NotServable(f"{_describe(name, kind)} is not served: {_SERVED}")
    for field in _OTHER_MODALITIES:
        if config.get(field):
            raise NotServable(f"{_describe(name, kind)} reads more than text ({field} in config.json): {_SERVED}")
    if config.get("is_encoder_decoder"):
        raise NotServable(f"{_describe(name, kind)} is an encoder with a decoder: {_SERVED}")


def _embeds(name: str, kind: str, *, pooled: bool) -> bool:
    if kind in ENCODERS:
        return not name or name.endswith(("Model", "ForMaskedLM", "ForPreTraining"))
    return kind in EMBEDDING_DECODERS and pooled and name.endswith(("Model", "ForCausalLM"))


def _describe(name: str, kind: str) -> str:
    return f"{name[:128] or 'a model without architectures'} (model_type {kind[:64]!r})"


def _list_encoders() -> str:
    return f"it knows model_type {', '.join(sorted(ENCODERS))}, and decoders with sentence-transformers' modules.json"
