"""Loads a checked model folder as a transformers module, with a dtype, on a device."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from .devices import LoadError, pick_dtype

SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


def load(folder: Path, *, task: str, dtype: str, device: str) -> PreTrainedModel:
    """The model in evaluation mode on its device.

    Raises:
        LoadError: transformers cannot load it, a layer is of an unknown type, or a weight is missing, which
            transformers would fill with random numbers.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # transformers' log lines go to the handlers of this process: its own handler writes plain text.
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    # transformers warns of missing weights; here they are an error.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    factory: Any = AutoModelForCausalLM if task == "generate" else AutoModel
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _check_layers(config)
        model, info = factory.from_pretrained(
            folder,
            config=config,
            dtype=pick_dtype(dtype, getattr(config, "dtype", None) or torch.float32, device),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except LoadError:
        raise
    # Any exception: each class of transformers checks config.json and tensors in its own way.
    except Exception as error:
        raise LoadError(f"{folder.name} cannot be loaded: {_first_line(error)}") from error
    missing = sorted(info["missing_keys"]) if task == "generate" else _missing_in_encoder(info["missing_keys"])
    if missing:
        raise LoadError(f"{folder.name} lacks {len(missing)} weights of its architecture, first {missing[0]}.")
    loaded: PreTrainedModel = model.eval().requires_grad_(False).to(device)
    return loaded


def _check_layers(config: Any) -> None:
    strange = set(getattr(config, "layer_types", None) or ()) - SUPPORTED_LAYERS
    if strange:
        raise LoadError(f"The model has layers of type {sorted(strange)[0]}; this engine knows attention layers only.")


def _missing_in_encoder(missing: set[str]) -> list[str]:
    """Missing weights without the pooler's: folders may leave the pooler out, and embeddings do not use it."""
    return sorted(name for name in missing if not name.startswith("pooler."))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
