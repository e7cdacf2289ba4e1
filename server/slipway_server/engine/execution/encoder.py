"""Encoders behind the scheduler: whole inputs in padded batches, pooled into one vector each."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ...models.devices import LoadError
from ..request import Sampled, ScheduledSequence

POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}


class EncoderRunner:
    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        self._model = model
        self._pooling, self._normalize = read_pooling(folder)

    def clear(self, blocks: list[int]) -> None:
        """Does nothing: an encoder has no KV cache."""

    def probe(self) -> None:
        """Encodes one token. Raises when the engine cannot compute."""
        self.self_test()

    @torch.inference_mode()
    def run(self, batch: list[ScheduledSequence]) -> list[Sampled]:
        """One result for each sequence: the float32 bytes of its vector, or no embedding if that is not finite."""
        prompts = [torch.tensor(scheduled.sequence.request.prompt) for scheduled in batch]
        ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(self._model.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=ids.device)
        mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        vectors = pool(states, mask, self._pooling)
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        finite = torch.isfinite(vectors).all(dim=-1).tolist()
        rows = zip(vectors.cpu().numpy(), finite, strict=True)
        return [Sampled(embedding=row.tobytes() if ok else None) for row, ok in rows]

    def self_test(self) -> None:
        ids = torch.arange(8, device=self._model.device)[None] % self._model.config.vocab_size
        with torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        if not torch.isfinite(states).all():
            raise LoadError("The self-test failed: the model's output is not finite.")


def read_pooling(folder: Path) -> tuple[str, bool]:
    """The pooling and whether to normalise, by the folder's sentence-transformers files; without them, mean and True.

    Raises:
        LoadError: the files are not readable, or name a layer or pooling that this server does not know.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        return "mean", True
    types = [str(module.get("type")) for module in _entries(modules)]
    if code := [name for name in types if not name.startswith("sentence_transformers.")]:
        raise LoadError(f"modules.json names code of the model folder, which is never run: {code[0][:128]}.")
    kinds = [name.rsplit(".", 1)[-1] for name in types]
    if strange := sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"}):
        raise LoadError(f"modules.json names a {strange[0]} layer; this server knows Pooling and Normalize.")
    config = _entries(folder / "1_Pooling" / "config.json")[0]
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise LoadError(
            f"1_Pooling/config.json requires {', '.join(chosen) or 'no pooling'}; this server cannot do that."
        )
    return POOLINGS[chosen[0]], "Normalize" in kinds


def _entries(path: Path) -> list[dict[str, Any]]:
    """The object of a JSON file, or the objects of its list."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} in {path.parent.name} cannot be read as JSON: {error}.") from None
    entries = found if isinstance(found, list) else [found]
    if not all(isinstance(entry, dict) for entry in entries):
        raise LoadError(f"{path.name} in {path.parent.name} holds something else than objects.")
    return entries


def pool(states: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    """Pools `states` [rows, tokens, size] to [rows, size]; padding is on the right and is ignored."""
    if mode == "cls":
        return states[:, 0]
    if mode == "last":
        return states[torch.arange(len(states)), mask.sum(dim=1) - 1]
    weights = mask[:, :, None]
    if mode == "max":
        return states.masked_fill(weights == 0, -torch.inf).amax(dim=1)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)
