"""Rotary position embeddings as config.json describes them: inverse frequencies, and a factor for cos and sin. Pure.

Sources: RoFormer (arXiv 2104.09864), YaRN (2309.00071), LongRoPE (2402.13753), Llama 3.1.
"""

import math
from dataclasses import dataclass
from typing import TypeGuard

from slipway_process.model_folder import Config

KNOWN_FIELDS = frozenset(
    {"rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings", "partial_rotary_factor"}
    | {"low_freq_factor", "high_freq_factor", "short_factor", "long_factor", "attention_factor"}
    | {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
)

# No factor makes a context longer than this.
LONGEST_TOKENS = 1 << 24


class Unsupported(Exception):
    """The built-in decoder cannot compute this model; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotary embedding: inverse frequencies [half of the rotated size], and a factor that multiplies cos and sin."""

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0


def rope_of(config: Config, kind: str, theta: float, local_theta: float | None = None) -> Config:
    """The rotary parameters of one kind of layer, from `rope_parameters` or from the older fields.

    Args:
        kind: full_attention or sliding_attention.
        theta: the base of the frequencies if the config names none.
        local_theta: the same for layers with a window, in families where those have their own base.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    nested = {"full_attention", "sliding_attention"} & given.keys()
    local = kind == "sliding_attention" and local_theta is not None
    if nested:
        given = given.get(kind) or {}
    elif local:
        given = {}  # rope_scaling is for the layers that see everything
    base = config.get("rope_local_base_freq", local_theta) if local else config.get("rope_theta", theta)
    longest = config.get("max_position_embeddings")
    explicit = {name: value for name, value in given.items() if value is not None}
    original = (
        config.get("original_max_position_embeddings") or explicit.get("original_max_position_embeddings") or longest
    )
    partial = config.get("partial_rotary_factor") or 1.0
    return (
        {"rope_theta": base, "partial_rotary_factor": partial}
        | explicit
        | {"original_max_position_embeddings": original, "longest": longest}
    )


def longest_contexts(config: Config, longest: int) -> tuple[int, int]:
    """The context in tokens that a model is served with by itself, and the most that may be requested of it.

    YaRN's authors count the lengthened context from the original one, and many configs keep the original in
    `max_position_embeddings`: vLLM serves original times factor then. Configs with linear scaling name either length,
    so that the longer one must be requested. The other kinds name the longer one.

    Args:
        longest: what config.json names, as `max_position_embeddings` or in another field.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters")
    rope = given if isinstance(given, dict) else {}
    kind, factor = _kind(rope), rope.get("factor")
    original = rope.get("original_max_position_embeddings") or longest
    if kind not in ("yarn", "linear") or not _is_number(factor) or not _is_number(original):
        return longest, longest
    lengthened = max(longest, int(min(original * factor, LONGEST_TOKENS)))
    return (lengthened if kind == "yarn" else longest), lengthened


def rotation(rope: Config, size: int, context_tokens: int) -> Rotation:
    """The rotary embedding for heads of `size` numbers and positions below `context_tokens`.

    Raises:
        Unsupported: its type or one of its parameters is not known here.
        KeyError: a parameter that its type needs is missing.
        ValueError, ArithmeticError, TypeError: a value makes no sense.
    """
    if strange := rope.keys() - KNOWN_FIELDS - {"longest"}:
        raise Unsupported(f"rotary embedding with {sorted(strange)[0]}")
    kind = _kind(rope)
    part, theta = float(rope["partial_rotary_factor"]), float(rope["rope_theta"])
    rotated = int(size * part) if 0 < part <= 1 else 0
    if rotated < 2 or not 0 < theta < math.inf:
        raise ValueError(f"heads of {size} numbers cannot be turned in {part} of them with rope_theta {theta}")
    plain = [theta ** (-i / rotated) for i in range(0, rotated, 2)]
    if kind == "default":
        return Rotation(tuple(plain))
    if kind == "linear":
        return Rotation(tuple(f / rope["factor"] for f in plain))
    if kind == "llama3":
        return Rotation(tuple(_llama3(f, rope) for f in plain))
    if kind == "yarn":
        return _yarn(plain, rope, rotated)
    if kind == "longrope":
        return _longrope(plain, rope, context_tokens)
    raise Unsupported(f"rotary embedding of type {kind!r}")


def _kind(rope: Config) -> str:
    """The type by its present name: the first configs of Phi-3 call LongRoPE `su` or `yarn`."""
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return "longrope" if kind == "su" or (kind == "yarn" and "long_factor" in rope) else kind


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _llama3(frequency: float, rope: Config) -> float:
    """High frequencies stay, low frequencies are divided by `factor`, those between are interpolated."""
    waves = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = min(1.0, max(0.0, (waves - low) / (high - low)))
    return float(share * frequency + (1 - share) * frequency / rope["factor"])


def _yarn(plain: list[float], rope: Config, rotated: int) -> Rotation:
    """High frequencies stay, low frequencies are divided by a factor, those between are interpolated."""
    original, base = rope["original_max_position_embeddings"], float(rope["rope_theta"])
    factor = float(rope.get("factor") or rope["longest"] / original)

    def dimension(rotations: float) -> float:
        return rotated * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    high = high + 0.001 if low == high else high
    stretched = [min(1.0, max(0.0, (index - low) / (high - low))) for index in range(len(plain))]
    frequencies = tuple(f / factor * share + f * (1 - share) for f, share in zip(plain, stretched, strict=True))
    return Rotation(frequencies, _yarn_factor(rope, factor))


def _yarn_factor(rope: Config, factor: float) -> float:
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    scale, all_dimensions = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and all_dimensions:
        return _yarn_scale(factor, scale) / _yarn_scale(factor, all_dimensions)
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, times: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0


def _longrope(plain: list[float], rope: Config, context_tokens: int) -> Rotation:
    """Divides the frequencies by one set of factors: the long set if the context is longer than the original one."""
    original = rope["original_max_position_embeddings"]
    stretch = rope.get("factor") or rope["longest"] / original
    factor = rope.get("attention_factor")
    if factor is None:
        factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    divisors = rope["long_factor" if context_tokens > original else "short_factor"]
    if len(divisors) != len(plain):
        raise Unsupported(f"longrope with {len(divisors)} factors for {len(plain)} frequencies")
    return Rotation(tuple(f / d for f, d in zip(plain, divisors, strict=True)), float(factor))
