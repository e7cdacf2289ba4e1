"""Reads adapter_config.json as peft writes it: each field is used, has no effect here, or is refused by its name. Pure.

https://github.com/huggingface/peft/blob/main/src/peft/tuners/lora/config.py
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import AdapterError

CONFIG = "adapter_config.json"
MOST_RANK, LARGEST_ALPHA = 4096, 1e6
MAX_PATTERNS, MAX_NAMES, MAX_CHARACTERS = 8192, 8192, 512
# Other initializations change the weights of the base: an adapter that was trained on those does not fit ours.
INITIALIZATIONS = (True, False, "gaussian", "orthogonal", "eva")
# Fields that say how an adapter was made, or that repeat what its tensors show.
WITHOUT_EFFECT = frozenset(
    {
        *("auto_mapping", "peft_version", "revision", "inference_mode", "lora_dropout", "runtime_config"),
        *("loftq_config", "eva_config", "corda_config", "megatron_config", "megatron_core", "qalora_group_size"),
        *("layers_to_transform", "layers_pattern", "exclude_modules"),
    }
)
USED = frozenset(
    {
        *("peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "rank_pattern", "alpha_pattern"),
        *("use_rslora", "use_dora", "bias", "init_lora_weights", "target_modules"),
    }
)
NEUTRAL: tuple[Any, ...] = (None, False, "", 0)
# Modules of a language model that adapters may be for, and not here.
NOT_ADAPTED = {
    "embed_tokens": "the embedding",
    "lm_head": "the head",
    "experts": "experts",
    "gate": "routers of experts",
}
_NAME = re.compile(r"\^?[A-Za-z0-9_]{1,128}(?:\.[A-Za-z0-9_]{1,128}){0,31}")

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """`base`: the base's name or path where the adapter was trained; empty: it names none."""

    rank: int
    alpha: float
    base: str = ""
    rank_pattern: Mapping[str, int] | None = None
    alpha_pattern: Mapping[str, float] | None = None
    rslora: bool = False
    dora: bool = False

    def rank_of(self, module: str) -> int:
        return _matching(self.rank_pattern or {}, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What b @ a is multiplied by: alpha / rank; rsLoRA (arXiv 2312.03732): alpha / sqrt(rank)."""
        rank, alpha = self.rank_of(module), _matching(self.alpha_pattern or {}, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def _matching(pattern: Mapping[str, N], module: str, default: N) -> N:
    """The value of the first key that is the end of the module's name; after `^` a key is the whole name."""
    for key, value in pattern.items():
        if module == key.removeprefix("^") or (not key.startswith("^") and module.endswith(f".{key}")):
            return value
    return default


def read_config(fields: Mapping[str, Any], max_rank: int) -> AdapterConfig:
    """Raises AdapterError, with the field's name, for what is not supported and for what no adapter can have."""
    for name, value in fields.items():
        if name not in USED and name not in WITHOUT_EFFECT and not _is_neutral(value):
            raise AdapterError(f"{name[:64]} is not supported: {_shown(value)}.", name[:64])
    _check_kind(fields)
    _check_targets(fields.get("target_modules"))
    rank = _number(fields, "r", 8, lambda value: _rank(value, max_rank))
    return AdapterConfig(
        rank=rank,
        alpha=_number(fields, "lora_alpha", 8.0, _alpha),
        base=_text(fields, "base_model_name_or_path"),
        rank_pattern=_pattern(fields, "rank_pattern", lambda value: _rank(value, max_rank)),
        alpha_pattern=_pattern(fields, "alpha_pattern", _alpha),
        rslora=_switch(fields, "use_rslora"),
        dora=_switch(fields, "use_dora"),
    )


def _is_neutral(value: Any) -> bool:
    return value in NEUTRAL if not isinstance(value, (dict, list)) else not value


def _shown(value: Any) -> str:
    return f"it is {str(value)[:64]!r}"


def _check_kind(fields: Mapping[str, Any]) -> None:
    if fields.get("peft_type") != "LORA":
        raise AdapterError(f"peft_type must be LORA; {_shown(fields.get('peft_type'))}.", "peft_type")
    if fields.get("task_type") not in (None, "CAUSAL_LM"):
        raise AdapterError(f"task_type must be CAUSAL_LM; {_shown(fields['task_type'])}.", "task_type")
    if fields.get("bias", "none") != "none":
        raise AdapterError(f"bias must be none; {_shown(fields['bias'])}.", "bias")
    initial = fields.get("init_lora_weights", True)
    if not any(initial is known or (isinstance(initial, str) and initial == known) for known in INITIALIZATIONS):
        raise AdapterError(
            f"init_lora_weights {str(initial)[:64]!r} changes the weights of the base: convert the adapter with "
            "peft's path_initial_model_for_weight_conversion.",
            "init_lora_weights",
        )


def _check_targets(targets: Any) -> None:
    """Refuses modules that are never adapted here. The tensors say which modules the adapter has."""
    if targets is None or isinstance(targets, str):
        return
    if not isinstance(targets, list) or len(targets) > MAX_NAMES:
        raise AdapterError("target_modules must be a list of names, or a text.", "target_modules")
    for target in targets:
        if not isinstance(target, str) or len(target) > MAX_CHARACTERS:
            raise AdapterError(f"target_modules must be names; {_shown(target)}.", "target_modules")
        if what := NOT_ADAPTED.get(target.rpartition(".")[2]):
            raise AdapterError(f"target_modules has {target[:64]!r}: {what} cannot be adapted here.", "target_modules")


def _number(fields: Mapping[str, Any], name: str, default: N, check: Callable[[Any], N | None]) -> N:
    value = check(fields.get(name, default))
    if value is None:
        raise AdapterError(f"{name} is out of range; {_shown(fields.get(name))}.", name)
    return value


def _rank(value: Any, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most else None


def _alpha(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -LARGEST_ALPHA <= value <= LARGEST_ALPHA else None


def _pattern(fields: Mapping[str, Any], name: str, check: Callable[[Any], N | None]) -> dict[str, N]:
    """peft's keys are regular expressions. Those that are names are taken; others could take forever to match."""
    pattern = fields.get(name) or {}
    if not isinstance(pattern, dict) or len(pattern) > MAX_PATTERNS:
        raise AdapterError(f"{name} must be an object of at most {MAX_PATTERNS} names.", name)
    values: dict[str, N] = {}
    for key, given in pattern.items():
        value = check(given)
        if not _NAME.fullmatch(key):
            raise AdapterError(f"{name} has the regular expression {key[:64]!r}: write names of modules.", name)
        if value is None:
            raise AdapterError(f"{name} of {key[:64]!r} is out of range; {_shown(given)}.", name)
        values[key] = value
    return values


def _switch(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise AdapterError(f"{name} must be true or false; {_shown(value)}.", name)
    return bool(value)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MAX_CHARACTERS):
        raise AdapterError(f"{name} must be a text of at most {MAX_CHARACTERS} characters.", name)
    return value or ""


def is_of_base(base: str, names: frozenset[str]) -> bool:
    """Whether an adapter's base is one of these names. Only the last part counts: folders differ."""
    return not base or _last_part(base) in set(map(_last_part, names))


def _last_part(name: str) -> str:
    """Of a path or a URI, without the revision after @, or the tag after a colon."""
    return re.split("[@:]", name.rstrip("/").rpartition("/")[2])[0].casefold()
