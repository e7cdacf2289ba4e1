"""Classifiers of texts and rerankers: scores are those of transformers, alone and in batches of mixed lengths."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest

from slipway_predict.formats import ModelError, text_model, text_pair_model
from slipway_predict.tensors import Tensor
from slipway_process.model_folder import classic as model_file
from slipway_process.model_folder.checkpoint import CheckpointError
from testkit import ROOT
from tests.predict.texts import encoders

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

OUTPUTS = ["logits", "tokens", "truncated"]


def sentences(seed: int, count: int, longest: int = 40) -> list[str]:
    """Texts of one word up to twice what a row has room for."""
    chance = Random(seed)
    words = (*encoders.WORDS, "Überfahrt", "x7", "港", "fog-bound")
    return [" ".join(chance.choices(words, k=chance.randint(1, longest))) for _ in range(count)]


def column(name: str, texts: list[str]) -> Tensor:
    values = numpy.empty(len(texts), object)
    values[:] = [text.encode() for text in texts]
    return Tensor(name, "BYTES", values)


def of_transformers(folder: Path, *columns: list[str]) -> Any:
    """Logits of each row alone, and its tokens, by the model and the tokenizer of transformers."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    given = [tokenizer(*row, truncation=True, return_tensors="pt") for row in zip(*columns, strict=True)]
    with torch.inference_mode():
        return numpy.concatenate([model(**one).logits for one in given]), [one.input_ids.shape[1] for one in given]


@pytest.mark.parametrize("make", [encoders.bert, encoders.xlm_roberta, encoders.modernbert, encoders.convbert])
def test_a_reranker_has_the_scores_of_transformers_alone_and_in_batches(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    folder = make(tmp_path)
    found = model_file.find(folder, task="rerank")
    assert found.format == model_file.PAIRS
    model = text_pair_model.load(found.path, 1)
    assert model.even == (make is encoders.convbert)
    columns = sentences(1, 40, 12), sentences(2, 40)
    inputs = [column(name, texts) for name, texts in zip(("text", "text_pair"), columns, strict=True)]
    expected, lengths = of_transformers(folder, *columns)
    scores, tokens, truncated = model.run(inputs, OUTPUTS)
    assert numpy.allclose(scores.array, expected, rtol=1e-5, atol=1e-5)
    assert numpy.ptp(expected) > 0.05  # scores that are all equal would be compared in vain
    assert tokens.array.tolist() == lengths
    assert 0 < sum(truncated.array) < 40
    for row in range(40):
        [alone] = model.run([one.part(row, row + 1) for one in inputs], ["logits"])
        assert numpy.allclose(alone.array[0], scores.array[row], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [encoders.bert, encoders.modernbert])
def test_a_classifier_has_the_scores_of_transformers_and_names_its_labels(
    tmp_path: Path, make: Callable[..., Path]
) -> None:
    folder = make(tmp_path, encoders.LABELS)
    found = model_file.find(folder, "transformers", "classify")
    assert found.format == model_file.TEXTS
    model = text_model.load(found.path, 1)
    assert model.description.labels == list(encoders.LABELS.values()) and model.description.scores == "logits"
    texts = sentences(3, 40)
    scores, tokens, _ = model.run([column("text", texts)], OUTPUTS)
    expected, lengths = of_transformers(folder, texts)
    assert numpy.allclose(scores.array, expected, rtol=1e-5, atol=1e-5)
    assert tokens.array.tolist() == lengths and max(lengths) == encoders.LONGEST


def test_the_reranker_of_the_examples_has_the_scores_of_transformers() -> None:
    folder = ROOT / "examples" / "models" / "tiny-reranker"
    columns = sentences(9, 5, 9), sentences(10, 5)
    inputs = [column(name, texts) for name, texts in zip(("text", "text_pair"), columns, strict=True)]
    [scores] = text_pair_model.load(model_file.find(folder, task="rerank").path, 1).run(inputs, ["logits"])
    assert numpy.allclose(scores.array, of_transformers(folder, *columns)[0], rtol=1e-5, atol=1e-5)


def test_types_of_tokens_are_those_of_the_class_of_the_tokenizer(tmp_path: Path) -> None:
    folder = encoders.bert(tmp_path)
    edit(folder / "tokenizer_config.json", model_input_names=None)
    columns = sentences(11, 5, 9), sentences(12, 5)
    inputs = [column(name, texts) for name, texts in zip(("text", "text_pair"), columns, strict=True)]
    model = text_pair_model.load(folder / "config.json", 1)
    [scores] = model.run(inputs, ["logits"])
    written = json.loads((folder / "tokenizer_config.json").read_text())
    del written["model_input_names"]
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    assert numpy.allclose(scores.array, of_transformers(folder, *columns)[0], rtol=1e-5, atol=1e-5)


def test_texts_are_cut_on_the_side_of_the_tokenizer(tmp_path: Path) -> None:
    folder = encoders.bert(tmp_path, encoders.LABELS)
    edit(folder / "tokenizer_config.json", truncation_side="left")
    texts = sentences(4, 10, 60)
    [scores] = text_model.load(folder / "config.json", 1).run([column("text", texts)], ["logits"])
    assert numpy.allclose(scores.array, of_transformers(folder, texts)[0], rtol=1e-5, atol=1e-5)


def test_one_label_and_independent_labels_have_probabilities_of_their_own(tmp_path: Path) -> None:
    one, several = (
        encoders.bert(tmp_path / "1"),
        encoders.bert(tmp_path / "2", encoders.LABELS, problem_type="multi_label_classification"),
    )
    for folder in (one, several):
        assert text_model.load(folder / "config.json", 1).description.scores == "independent logits"


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickled weights"),
        (lambda folder: edit(folder / "config.json", auto_map={"AutoModel": "m.M"}), "code of its own"),
        (lambda folder: edit(folder / "config.json", model_type="llama"), "model_type 'llama'; known ones are"),
        (lambda folder: edit(folder / "config.json", quantization_config={"quant_method": "gptq"}), "quantized"),
        (lambda folder: edit(folder / "config.json", architectures=["BertModel"]), "no preprocessor_config"),
    ],
)
def test_a_folder_that_is_no_whole_classifier_of_texts_is_refused(
    tmp_path: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    damage(encoders.bert(tmp_path))
    with pytest.raises(CheckpointError, match=reason):
        model_file.find(tmp_path, task="rerank")


@pytest.mark.parametrize(
    "name, changes, reason",
    [
        ("config.json", {"num_hidden_layers": 3}, "lack bert"),
        ("config.json", {"vocab_size": 20}, "cannot load|lack"),
        ("config.json", {"id2label": encoders.LABELS}, "cannot load|lack"),
        ("tokenizer.json", {"model": {}}, "cannot be read"),
        ("tokenizer_config.json", {"model_max_length": 4}, "no room for a text"),
    ],
)
def test_a_model_that_its_files_contradict_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], reason: str
) -> None:
    edit(encoders.bert(tmp_path) / name, **changes)
    with pytest.raises(ModelError, match=reason):
        text_pair_model.load(tmp_path / "config.json", 1)


def test_a_reranker_has_one_score(tmp_path: Path) -> None:
    encoders.bert(tmp_path, encoders.LABELS)
    with pytest.raises(ModelError, match="3 labels, and a reranker has one"):
        text_pair_model.load(tmp_path / "config.json", 1)


def test_a_tokenizer_of_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    encoders.bert(tmp_path)
    written = json.loads((tmp_path / "tokenizer.json").read_text())
    written["model"]["vocab"]["more"] = len(encoders.TOKENS)
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    with pytest.raises(ModelError, match="tokens; the model has"):
        text_pair_model.load(tmp_path / "config.json", 1)
