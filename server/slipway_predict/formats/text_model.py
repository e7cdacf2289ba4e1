"""Hugging Face's classifiers of texts from safetensors: model by transformers, tokenizer from tokenizer.json."""

import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from tokenizers import Encoding, Tokenizer
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from ..description import CLASSIFICATION, INDEPENDENT, LOGITS, REGRESSION, TENSORS, ModelDescription, TextInput
from ..images.classifier import independent, labels_of
from ..images.preprocessing import json_object
from ..tensors import BOOL, BYTES, Array, Tensor, TensorSpec
from ..texts import MAX_TOKENS, groups, kept_tokens
from . import ModelError
from .transformers_model import loaded

TEXT, PAIR = "text", "text_pair"
SCORES, TOKENS, TRUNCATED = "logits", "tokens", "truncated"
_TRIAL_TOKENS = 1024  # of the longest row of the trial
_TOLERANCE = 1e-4  # between scores of a row alone and with padding
# Their positions are counted from behind the padding token, so that they have fewer than their config.json says.
_COUNT_FROM_PADDING = frozenset(
    {"camembert", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"}
)


class TextClassifier:
    """Logits of rows of one text, or of two, with the number of tokens, and whether tokens were cut.

    `even`: rows of equal length alone are computed together, because the model does not ignore padding.
    """

    def __init__(self, model: Any, reader: "RowReader", description: ModelDescription) -> None:
        self._model, self._reader = model, reader
        self.description = description
        self.even = False

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        rows, cut = self._reader.read(_columns(inputs))
        lengths = [len(row.ids) for row in rows]
        scores = numpy.empty((len(rows), int(self._model.config.num_labels)), "<f4")
        for indices in groups(lengths, even=self.even):
            scores[indices] = self._scores([rows[index] for index in indices])
        found = {
            SCORES: Tensor(SCORES, "FP32", scores),
            TOKENS: Tensor(TOKENS, "INT32", numpy.array(lengths, "<i4")),
            TRUNCATED: Tensor(TRUNCATED, BOOL, numpy.array(cut, "?")),
        }
        return [found[name] for name in outputs]

    def together(self, inputs: list[Tensor]) -> Array:
        """Logits of rows that are all padded to the longest one."""
        return self._scores(self._reader.read(_columns(inputs))[0])

    def _scores(self, rows: Sequence[Encoding]) -> Array:
        """Logits of rows of similar lengths, padded to the longest one."""
        longest = max(len(row.ids) for row in rows)
        shape = (len(rows), longest)
        padding = self._model.config.pad_token_id or 0
        ids, types, mask = torch.full(shape, padding), torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        mask = mask.long()
        for at, row in enumerate(rows):
            size = len(row.ids)
            ids[at, :size], mask[at, :size] = torch.tensor(row.ids), 1
            types[at, :size] = torch.tensor(row.type_ids)
        more = {"token_type_ids": types} if self._reader.with_types else {}
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=mask, **more).logits
        found: Array = logits.float().numpy()
        return found


def _columns(inputs: list[Tensor]) -> list[list[str]]:
    return [[item.decode() for item in one.array.reshape(-1).tolist()] for one in inputs]


class RowReader:
    """Tokens of rows by the model's own tokenizer. A row of more than `max_tokens` is cut."""

    def __init__(self, folder: Path, model: Any, *, pairs: bool) -> None:
        written = folder / "tokenizer_config.json"
        options = json_object(written) if written.is_file() else {}
        try:
            self._backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing more precise
            raise ModelError(f"tokenizer.json of {folder.name} cannot be read: {str(error)[:200]}.") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        size = self._backend.get_vocab_size(with_added_tokens=True)
        if size > model.config.vocab_size:
            raise ModelError(
                f"tokenizer.json of {folder.name} has {size} tokens; the model has {model.config.vocab_size}."
            )
        self._side = "left" if options.get("truncation_side") == "left" else "right"
        self.max_tokens = _max_tokens(model.config, options)
        self._room = self.max_tokens - self._backend.num_special_tokens_to_add(pairs)
        if self._room < 2:
            raise ModelError(f"{folder.name} has no room for a text: its rows have {self.max_tokens} tokens.")
        self.with_types = _takes_types(model, options)

    def read(self, columns: Sequence[Sequence[str]]) -> tuple[list[Encoding], list[bool]]:
        """The tokens of each row, and whether it was cut. A text that occurs in several rows is read once."""
        texts = list(dict.fromkeys(text for column in columns for text in column))
        encoded = self._backend.encode_batch(texts, add_special_tokens=False)
        known = dict(zip(texts, encoded, strict=True))
        found, cut = [], []
        for row in zip(*columns, strict=True):
            lengths = [len(known[text]) for text in row]
            first, *second = lengths
            kept = kept_tokens(first, sum(second), self._room)
            parts = [self._part(known[text], count) for text, count in zip(row, kept, strict=False)]
            found.append(self._backend.post_process(parts[0], parts[1] if second else None))
            cut.append(sum(lengths) > self._room)
        return found, cut

    def _part(self, text: Encoding, count: int) -> Encoding:
        """The first tokens of a text, or its last ones."""
        if len(text) <= count:
            return text
        found = Encoding.merge([text])  # a copy: other rows may have the text whole
        found.truncate(count, direction=self._side)
        return found


def load(path: Path, threads: int) -> TextClassifier:
    return loaded_classifier(path.parent, threads, pairs=False)


def loaded_classifier(folder: Path, threads: int, *, pairs: bool) -> TextClassifier:
    """The classifier of a folder. Raises ModelError for one that is not whole, or no reranker where rows are pairs."""
    torch.set_num_threads(threads)
    model = loaded(transformers.AutoModelForSequenceClassification, folder)
    labels = int(model.config.num_labels)
    if pairs and labels != 1:
        raise ModelError(
            f"{folder.name} has {labels} labels, and a reranker has one score: write spec.model.task: classify with "
            "spec.model.format: transformers."
        )
    reader = RowReader(folder, model, pairs=pairs)
    found = TextClassifier(model, reader, _described(model.config, labels, reader.max_tokens, pairs=pairs))
    _try(found, pairs=pairs)
    return found


def _described(config: Any, labels: int, max_tokens: int, *, pairs: bool) -> ModelDescription:
    inputs = [TensorSpec(name, BYTES, (-1,)) for name in ((TEXT, PAIR) if pairs else (TEXT,))]
    outputs = [
        TensorSpec(SCORES, "FP32", (-1, labels)),
        TensorSpec(TOKENS, "INT32", (-1,)),
        TensorSpec(TRUNCATED, BOOL, (-1,)),
    ]
    runtime = f"transformers {transformers.__version__}"
    text = TextInput(max_tokens, pairs)
    if pairs:
        return ModelDescription("pytorch", runtime, inputs, outputs, task=TENSORS, text=text)
    written = config.to_dict()
    if written.get("problem_type") == "regression":
        return ModelDescription("pytorch", runtime, inputs, outputs, task=REGRESSION, text=text)
    names: list[Any] = list(labels_of({"id2label": {str(at): name for at, name in config.id2label.items()}}))
    meaning = INDEPENDENT if labels == 1 or independent(written) else LOGITS
    return ModelDescription(
        "pytorch", runtime, inputs, outputs, task=CLASSIFICATION, labels=names, probabilities=SCORES, scores=meaning,
        text=text,
    )  # fmt: skip


def _max_tokens(config: Any, options: dict[str, Any]) -> int:
    """Tokens of a row: the smaller one of the positions of the model and the limit of its tokenizer."""
    positions = getattr(config, "max_position_embeddings", None)
    most = positions if isinstance(positions, int) and positions > 0 else MAX_TOKENS
    if config.model_type in _COUNT_FROM_PADDING:
        most -= (config.pad_token_id or 0) + 1
    own = options.get("model_max_length")
    if isinstance(own, int | float) and not isinstance(own, bool) and math.isfinite(own) and own >= 1:
        most = min(most, int(own))
    return min(most, MAX_TOKENS)


def _takes_types(model: Any, options: dict[str, Any]) -> bool:
    """Whether the model distinguishes the first text of a row from the second one by types of tokens."""
    names = options.get("model_input_names")
    if names is None:  # those of the class of its tokenizer, whose code is transformers' own
        kind = tokenizer_class_from_name(str(options.get("tokenizer_class") or ""))
        names = getattr(kind, "model_input_names", None)
    if isinstance(names, list) and "token_type_ids" not in names:
        return False
    known = "token_type_ids" in inspect.signature(model.forward).parameters
    return known and (getattr(model.config, "type_vocab_size", 0) or 0) > 1


def _try(model: TextClassifier, *, pairs: bool) -> None:
    """Run a short row and a long one: together, and alone. Raises ModelError where the model does not take them."""
    assert model.description.text
    count = min(model.description.text.max_tokens, _TRIAL_TOKENS)
    values = numpy.array([b"example", b"example " * count], object)
    rows = [Tensor(name, BYTES, values) for name in ((TEXT, PAIR) if pairs else (TEXT,))]
    try:
        alone = [model.run([one.part(at, at + 1) for one in rows], [SCORES])[0].array for at in (0, 1)]
        model.even = not numpy.allclose(
            model.together(rows), numpy.concatenate(alone), _TOLERANCE, _TOLERANCE, equal_nan=True
        )
    except Exception as error:
        raise ModelError(
            f"The model does not take a row of {count} tokens of its tokenizer: {type(error).__name__}: "
            f"{str(error)[:200]}"
        ) from None
