"""What a decoder's config.json says, in one vocabulary for all families. Pure: no torch, no files.

A family is what it does differently from llama. What is not understood completely is Unsupported, never guessed.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

Config = dict[str, Any]


class Unsupported(Exception):
    """This decoder is not one of ours: one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embedding: inverse frequencies of half the rotated size, and what cos and sin are multiplied by."""

    inverse_frequencies: tuple[float, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerShape:
    rotation: Rotation | None  # None: no position is told to this layer
    window: int = 0  # tokens that it sees, itself included; 0: all


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder-only transformer with RMSNorm, grouped-query attention and a gated MLP."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    epsilon: float
    layers: tuple[LayerShape, ...]
    scale: float  # of attention scores
    activation: str = "silu"  # silu | gelu_tanh
    tied: bool = False  # the head is the embedding
    qk_norm: bool = False
    norms_after: bool = False  # RMSNorm after attention and MLP too, before each is added
    norm_offset: float = 0.0  # added to the weights of RMSNorm
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logits_divisor: float = 1.0
    score_cap: float = 0.0
    logits_cap: float = 0.0
    packed_names: bool = False  # qkv_proj and gate_up_proj lie in one tensor each
    ignored: tuple[str, ...] = field(default=("rotary_emb.inv_freq",))  # tensors of old checkpoints that say nothing

    def step_bytes(self, tokens: int, rows: int, number_bytes: int) -> int:
        """At most, while a step of so many tokens is computed and so many rows of it are sampled from.

        Alive at a time: the residual stream and its norm beside a layer's widest part, which is q, k, v, the turned
        queries and their answer, or gate and up with their product; then the logits in float32, as the model told
        them, as the rules changed them, and as probabilities with their noise.
        """
        attention = 3 * self.heads * self.head_size + 2 * self.kv_heads * self.head_size
        widest = 2 * self.hidden + max(attention, 3 * self.inner)
        return tokens * widest * number_bytes + rows * self.vocabulary * (number_bytes + 4 * 4)


def shape_of(config: Config, context_tokens: int) -> DecoderShape:
    """The decoder that a config describes, for positions below `context_tokens`.

    Raises:
        Unsupported: for another family, or one with a feature that is not known here.
    """
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise Unsupported(f"model_type {family!r} is not one of {', '.join(sorted(_FAMILIES))}")
    try:
        return _FAMILIES[family](_common(config, context_tokens), config, context_tokens)
    except KeyError as error:
        raise Unsupported(f"config.json lacks {error}") from None


def _common(config: Config, context_tokens: int) -> DecoderShape:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    size = int(config.get("head_dim") or hidden // heads)
    if config.get("pretraining_tp", 1) != 1:
        raise Unsupported("pretraining_tp is not 1")
    return DecoderShape(
        hidden=hidden,
        inner=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=size,
        vocabulary=int(config["vocab_size"]),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        layers=_layers(config, size, context_tokens),
        scale=size**-0.5,
        activation=_activation(config),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _activation(config: Config) -> str:
    name = config.get("hidden_activation") or config.get("hidden_act", "silu")
    known = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
    if name not in known:
        raise Unsupported(f"activation {name!r}")
    return known[name]


# --- layers -----------------------------------------------------------------------------------------------------------


def _layers(config: Config, size: int, context_tokens: int) -> tuple[LayerShape, ...]:
    kinds = _kinds(config)
    windows = {"full_attention": 0, "sliding_attention": int(config.get("sliding_window") or 0)}
    ropes = {kind: rotation(_rope(config, kind), size, context_tokens) for kind in set(kinds)}
    told = config.get("no_rope_layers") or [1] * len(kinds)
    return tuple(
        LayerShape(ropes[kind] if with_rope else None, windows[kind] if windows[kind] < context_tokens else 0)
        for kind, with_rope in zip(kinds, told, strict=True)
    )


def _kinds(config: Config) -> list[str]:
    count = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or [_everywhere(config)] * count
    if len(kinds) != count or set(kinds) - {"full_attention", "sliding_attention"}:
        raise Unsupported(f"layers of types {sorted(set(kinds))}")
    return list(kinds)


def _everywhere(config: Config) -> str:
    """Of families without layer_types: mistral's window holds in every layer, qwen's only where it is switched on."""
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return "full_attention"
    if config.get("model_type") not in ("mistral", "phi3"):
        raise Unsupported("a sliding window without layer_types")
    return "sliding_attention"


def _rope(config: Config, kind: str) -> Config:
    """rope_parameters as newer configs have them, for each kind of layer or for all; or the older fields."""
    given = config.get("rope_parameters")
    if given and kind in given:
        given = given[kind]
    if given is None or "rope_theta" not in given:
        given = {"rope_theta": config.get("rope_theta", 10000.0)} | (config.get("rope_scaling") or {})
        if kind == "sliding_attention" and "rope_local_base_freq" in config:
            given = {"rope_theta": config["rope_local_base_freq"]}
    partial = config.get("partial_rotary_factor")
    original = config.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    own = {name: value for name, value in given.items() if value is not None}
    return (
        {"partial_rotary_factor": partial or 1.0, "original_max_position_embeddings": original}
        | own
        | {"longest": config.get("max_position_embeddings")}
    )


def rotation(rope: Config, size: int, context_tokens: int) -> Rotation:
    """Frequencies of one kind of layer. Sources: RoFormer (arXiv 2104.09864), LongRoPE (2402.13753), Llama 3.1."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rotated = int(size * rope["partial_rotary_factor"])
    plain = [rope["rope_theta"] ** (-i / rotated) for i in range(0, rotated, 2)]
    if kind == "default":
        return Rotation(tuple(plain))
    if kind == "linear":
        return Rotation(tuple(f / rope["factor"] for f in plain))
    if kind == "llama3":
        return Rotation(tuple(_llama3(f, rope) for f in plain))
    if kind == "longrope":
        return _longrope(plain, rope, context_tokens)
    raise Unsupported(f"rotary embedding of type {kind!r}")


def _llama3(frequency: float, rope: Config) -> float:
    """Short waves stay, long ones are stretched, those between are mixed."""
    waves = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = min(1.0, max(0.0, (waves - low) / (high - low)))
    return float(kept * frequency + (1 - kept) * frequency / rope["factor"])


def _longrope(plain: list[float], rope: Config, context_tokens: int) -> Rotation:
    """One set of factors for the whole context: with positions beyond the original ones, the long set throughout."""
    original = rope["original_max_position_embeddings"]
    stretch = rope.get("factor") or rope["longest"] / original
    factor = rope.get("attention_factor") or (
        math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    )
    divisors = rope["long_factor" if context_tokens > original else "short_factor"]
    return Rotation(tuple(f / d for f, d in zip(plain, divisors, strict=True)), factor)


# --- families ---------------------------------------------------------------------------------------------------------


def _llama(shape: DecoderShape, config: Config, context_tokens: int) -> DecoderShape:
    return shape


def _qwen3(shape: DecoderShape, config: Config, context_tokens: int) -> DecoderShape:
    return replace(shape, qk_norm=True)


def _phi3(shape: DecoderShape, config: Config, context_tokens: int) -> DecoderShape:
    return replace(shape, packed_names=True)


def _granite(shape: DecoderShape, config: Config, context_tokens: int) -> DecoderShape:
    return replace(
        shape,
        scale=float(config["attention_multiplier"]),
        embedding_factor=float(config["embedding_multiplier"]),
        residual_factor=float(config["residual_multiplier"]),
        logits_divisor=float(config["logits_scaling"]),
    )


def _gemma(shape: DecoderShape, config: Config, context_tokens: int) -> DecoderShape:
    tied = bool(config.get("tie_word_embeddings", True))
    # hidden_act is what the first checkpoints said, and not what the model was trained with.
    return replace(shape, tied=tied, norm_offset=1.0, embedding_factor=shape.hidden**0.5, activation="gelu_tanh")


def _gemma2(shape: DecoderShape, config: Config, context_tokens: int) -> DecoderShape:
    return replace(
        _gemma(shape, config, context_tokens),
        norms_after=True,
        scale=float(config["query_pre_attn_scalar"]) ** -0.5,
        score_cap=float(config.get("attn_logit_softcapping") or 0.0),
        logits_cap=float(config.get("final_logit_softcapping") or 0.0),
    )


def _gemma3(shape: DecoderShape, config: Config, context_tokens: int) -> DecoderShape:
    if config.get("use_bidirectional_attention"):
        raise Unsupported("bidirectional attention")
    return replace(_gemma2(shape, config, context_tokens), qk_norm=True)


_FAMILIES = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "granite": _granite,
    "smollm3": _llama,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
}
