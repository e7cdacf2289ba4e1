"""Translates a decoder's config.json into one description for all families. Pure: no torch, no files.

A family is described by its differences from llama. Unknown features raise Unsupported; nothing is guessed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slipway_process.model_folder import Config
from slipway_process.model_folder.rope import Rotation, Unsupported, rope_of, rotation

MOST_LAYERS = 1024
MOST_HEAD_SIZE = 4096
MOST = 2**24  # of heads, of a size, of a vocabulary: larger values are mistakes, and memory would be allocated for them


class BadConfig(Exception):
    """The values in config.json describe no possible model; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    rotation: Rotation | None  # None: this layer has no position embedding
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
    ignored: tuple[str, ...] = field(default=("rotary_emb.inv_freq",))  # redundant tensors of old checkpoints

    def step_bytes(self, tokens: int, rows: int, number_bytes: int) -> int:
        """An upper bound of the bytes that a step takes, with `tokens` tokens and `rows` rows that are sampled from.

        `number_bytes`: of one activation. Alive at the same time are the residual stream and its norm, beside the
        widest part of a layer: either q, k, v, the rotated queries and the attention's output, or gate, up and their
        product. Then the logits: from the model, in float32, edited, and as probabilities with their noise.
        """
        attention = 3 * self.heads * self.head_size + 2 * self.kv_heads * self.head_size
        widest = 2 * self.hidden + max(attention, 3 * self.inner)
        return tokens * widest * number_bytes + rows * self.vocabulary * (number_bytes + 4 * 4)


def shape_of(config: Config, context_tokens: int) -> DecoderShape:
    """The decoder that a config.json describes, for positions below `context_tokens`.

    Raises:
        Unsupported: the family, or a feature of the model, is not known here.
        BadConfig: a value is one that no model can have.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in _FAMILIES:
        raise Unsupported(f"model_type {name!r} is not one of {', '.join(sorted(_FAMILIES))}")
    family = _FAMILIES[name]
    config = family.missing | config
    try:
        return family.build(_common(config, context_tokens, family), config)
    except KeyError as error:
        raise Unsupported(f"config.json lacks {error}") from None
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BadConfig(f"config.json makes no sense as a {name} model: {error}") from None


def _common(config: Config, context_tokens: int, family: "_Family") -> DecoderShape:
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    size = _count(config, "head_dim") if config.get("head_dim") is not None else hidden // heads
    kv_heads = _count(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    if not 2 <= size <= MOST_HEAD_SIZE or heads % kv_heads:
        raise ValueError(f"{heads} heads of {size} numbers cannot share {kv_heads} heads of keys and values")
    return DecoderShape(
        hidden=hidden,
        inner=_count(config, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        vocabulary=_count(config, "vocab_size"),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        layers=_layers(config, size, context_tokens, family),
        scale=size**-0.5,
        activation=_activation(config),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _count(config: Config, name: str, most: int = MOST) -> int:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a whole number from 1 to {most}")
    return value


def _activation(config: Config) -> str:
    if str(config["model_type"]).startswith("gemma"):
        return "gelu_tanh"  # the first checkpoints name another hidden_act than the one that they were trained with
    name = config.get("hidden_act", "silu")
    known = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
    if not isinstance(name, str) or name not in known:
        raise Unsupported(f"activation {name!r}")
    return known[name]


# --- layers -----------------------------------------------------------------------------------------------------------


def _layers(config: Config, size: int, context_tokens: int, family: "_Family") -> tuple[LayerShape, ...]:
    count = _count(config, "num_hidden_layers", MOST_LAYERS)
    rope_layers = _rope_layers(config, count) if family.skips_rope else [1] * count
    kinds = _kinds(config, family.kinds(config, rope_layers))
    window = int(config.get("sliding_window") or 0) if config.get("use_sliding_window") is not False else 0
    windows = {"full_attention": 0, "sliding_attention": window if window < context_tokens else 0}
    ropes = {
        kind: rotation(rope_of(config, kind, family.theta, family.local_theta), size, context_tokens)
        for kind in set(kinds)
    }
    return tuple(
        LayerShape(ropes[kind] if has_rope else None, windows[kind])
        for kind, has_rope in zip(kinds, rope_layers, strict=True)
    )


def _kinds(config: Config, usual: list[str]) -> list[str]:
    """The attention type of each layer: config.json's `layer_types`, or else `usual`, the family's own."""
    kinds = config.get("layer_types") or usual
    if len(kinds) != len(usual) or set(kinds) - {"full_attention", "sliding_attention"}:
        raise Unsupported(f"layers of types {sorted(map(str, set(kinds)))}")
    return list(kinds)


def _rope_layers(config: Config, count: int) -> list[int]:
    """1 for each layer with rotary embedding, else 0: `no_rope_layers`, or else 0 for every n-th layer."""
    interval = int(config["no_rope_layer_interval"])
    rope_layers = config.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(count)]
    if len(rope_layers) != count:
        raise Unsupported(f"no_rope_layers names {len(rope_layers)} of {count} layers")
    return list(rope_layers)


# Published configs name a window but no layer_types: only the family determines which layers have the window.


def _no_window(config: Config, rope_layers: list[int]) -> list[str]:
    if config.get("sliding_window"):
        raise Unsupported("a sliding window in a family that has none")
    return ["full_attention"] * len(rope_layers)


def _window_everywhere(config: Config, rope_layers: list[int]) -> list[str]:
    kind = "sliding_attention" if config.get("sliding_window") else "full_attention"
    if set(config.get("layer_types") or [kind]) != {kind}:
        raise Unsupported("layer_types in a family whose layers are all alike")
    return [kind] * len(rope_layers)


def _window_above(config: Config, rope_layers: list[int]) -> list[str]:
    """Qwen: with `use_sliding_window`, the layers from `max_window_layers` on have a window."""
    on = config["use_sliding_window"] and config.get("sliding_window")
    first = int(config["max_window_layers"]) if on else len(rope_layers)
    return ["sliding_attention" if index >= first else "full_attention" for index in range(len(rope_layers))]


def _window_but_every(config: Config, rope_layers: list[int]) -> list[str]:
    """Gemma: all layers but every n-th have a window."""
    nth = int(config["sliding_window_pattern"])
    return ["sliding_attention" if (index + 1) % nth else "full_attention" for index in range(len(rope_layers))]


def _window_without_rotation(config: Config, rope_layers: list[int]) -> list[str]:
    on = config["use_sliding_window"] and config.get("sliding_window")
    return ["sliding_attention" if on and not has_rope else "full_attention" for has_rope in rope_layers]


# --- families ---------------------------------------------------------------------------------------------------------


def _llama(shape: DecoderShape, config: Config) -> DecoderShape:
    return shape


def _qwen3(shape: DecoderShape, config: Config) -> DecoderShape:
    return replace(shape, qk_norm=True)


def _phi3(shape: DecoderShape, config: Config) -> DecoderShape:
    return replace(shape, packed_names=True)


def _granite(shape: DecoderShape, config: Config) -> DecoderShape:
    return replace(
        shape,
        scale=float(config["attention_multiplier"]),
        embedding_factor=float(config["embedding_multiplier"]),
        residual_factor=float(config["residual_multiplier"]),
        logits_divisor=float(config["logits_scaling"]),
    )


def _gemma(shape: DecoderShape, config: Config) -> DecoderShape:
    return replace(shape, norm_offset=1.0, embedding_factor=shape.hidden**0.5)


def _gemma2(shape: DecoderShape, config: Config) -> DecoderShape:
    if config.get("use_bidirectional_attention"):
        raise Unsupported("bidirectional attention")
    return replace(
        _gemma(shape, config),
        norms_after=True,
        scale=float(config["query_pre_attn_scalar"]) ** -0.5,
        score_cap=float(config["attn_logit_softcapping"] or 0.0),
        logits_cap=float(config["final_logit_softcapping"] or 0.0),
    )


def _gemma3(shape: DecoderShape, config: Config) -> DecoderShape:
    return replace(_gemma2(shape, config), qk_norm=True)


@dataclass(frozen=True, slots=True)
class _Family:
    """A family's differences from llama. `missing`: transformers' defaults for fields that a config.json leaves out."""

    build: Callable[[DecoderShape, Config], DecoderShape]
    kinds: Callable[[Config, list[int]], list[str]]
    missing: Config = field(default_factory=dict)
    theta: float = 10_000.0
    local_theta: float | None = None
    skips_rope: bool = False


_QWEN = {
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
}
_GEMMA2 = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
_GEMMA3 = _GEMMA2 | {
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_GRANITE = {
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
_SMOLLM3 = {
    "num_key_value_heads": 4,
    "no_rope_layer_interval": 4,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
_FAMILIES = {
    "llama": _Family(_llama, _no_window),
    "mistral": _Family(_llama, _window_everywhere, {"num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": _Family(_llama, _window_above, _QWEN),
    "qwen3": _Family(_qwen3, _window_above, _QWEN | {"head_dim": 128}),
    "phi3": _Family(_phi3, _window_everywhere, {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}),
    "granite": _Family(_granite, _no_window, _GRANITE),
    "smollm3": _Family(_llama, _window_without_rotation, _SMOLLM3, theta=2_000_000.0, skips_rope=True),
    "gemma": _Family(_gemma, _no_window, {"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True}),
    "gemma2": _Family(_gemma2, _window_but_every, _GEMMA2),
    "gemma3_text": _Family(_gemma3, _window_but_every, _GEMMA3, theta=1_000_000.0, local_theta=10_000.0),
}
