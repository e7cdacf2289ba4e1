"""Predicts from config.json alone how the server would serve a model, and why. Pure."""

from dataclasses import dataclass
from typing import Any

from slipway_process.model_folder import architectures
from slipway_process.model_folder.quantization.reading import method_of
from slipway_process.model_folder.rope import Unsupported, longest_contexts

from .families import BadConfig, shape_of

NATIVE, FALLBACK, ENCODER, CLASSIFIER, REFUSED = "native", "fallback", "encoder", "classifier", "refused"


@dataclass(frozen=True, slots=True)
class ModelSupport:
    served: str  # native | fallback | encoder | classifier | refused
    reason: str = ""  # why it is refused, or why the engine's own decoder does not compute it


def check_support(config: dict[str, Any], *, pooled: bool = False, context_tokens: int | None = None) -> ModelSupport:
    """How a folder with this config.json would be served.

    Args:
        pooled: whether the folder has sentence-transformers' modules.json.
        context_tokens: the requested context length; None: the config's own.
    """
    try:
        if architectures.is_text_classifier(config):
            architectures.refuse_quantized(config)
            return ModelSupport(CLASSIFIER)
        if architectures.task_of(config, pooled=pooled) == architectures.EMBED:
            return ModelSupport(ENCODER)
        longest = config.get("max_position_embeddings")
        shape_of(config, context_tokens or longest_contexts(config, longest if isinstance(longest, int) else 2048)[0])
    except (architectures.NotServable, BadConfig) as reason:
        return ModelSupport(REFUSED, str(reason))
    except Unsupported as reason:
        why = architectures.incompatibility(config) or quantized_foreign(config)
        return ModelSupport(REFUSED, why) if why else ModelSupport(FALLBACK, str(reason))
    return ModelSupport(NATIVE)


def quantized_foreign(config: dict[str, Any]) -> str | None:
    """Why a model that the engine's own decoder does not compute is refused for its quantization; None: it has none."""
    if not config.get("quantization_config"):
        return None
    method = method_of(config["quantization_config"])
    return f"its weights are quantized with {method}, which is read for the engine's own families only"
