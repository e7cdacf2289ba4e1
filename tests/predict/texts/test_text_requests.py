"""Servers of a reranker and of a classifier of texts: scores in order, and errors that name the field."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.predict.texts import encoders
from tests.predict.texts.test_text_models import of_transformers, sentences
from tests.server.process import ServerProcess, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FLAGS = ("--served-model-name", "m", "--model-version", "v1")
QUERY = "what is the captain of the ship"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.bert(tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def reranker(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(folder, *FLAGS, "--task", "rerank") as server:
        yield server.wait_ready()


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_documents_are_sorted_by_the_scores_of_transformers(folder: Path, reranker: ServerProcess) -> None:
    documents: list[Any] = sentences(5, 30)
    logits, lengths = of_transformers(folder, [QUERY] * 30, documents)
    given = [{"text": one} if index % 2 else one for index, one in enumerate(documents)]
    body = {"model": "m", "query": QUERY, "documents": given}
    status, _, answer = post(reranker.url + "/v1/rerank", body)
    assert status == 200, answer
    results = answer["results"]
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True) and len({one["index"] for one in results}) == 30
    for one in results:
        assert one["relevance_score"] == pytest.approx(sigmoid(logits[one["index"], 0]), abs=1e-5)
        assert one.get("truncated", False) == (lengths[one["index"]] == encoders.LONGEST)
    assert answer["usage"]["total_tokens"] == sum(lengths)
    best = post(reranker.url + "/rerank", body | {"top_n": 3, "return_documents": True, "use_activation": False})[2]
    assert [one["index"] for one in best["results"]] == [one["index"] for one in results[:3]]
    for one in best["results"]:
        assert one["document"] == {"text": documents[one["index"]]}
        assert one["relevance_score"] == pytest.approx(float(logits[one["index"], 0]), abs=1e-4)


def test_the_second_version_of_coheres_api_is_served_with_errors_of_its_shape(reranker: ServerProcess) -> None:
    """`cohere.ClientV2` sends only there; it is no path of the Open Inference Protocol."""
    body = {"model": "m", "query": QUERY, "documents": sentences(5, 4), "top_n": 2}
    (_, _, one), (status, _, other) = (post(reranker.url + path, body) for path in ("/v1/rerank", "/v2/rerank"))
    assert (status, other["results"]) == (200, one["results"])
    status, _, refused = post(reranker.url + "/v2/rerank", body | {"documents": ["a", ""]})
    assert (status, refused["error"]["param"]) == (400, "documents[1]")


def test_pairs_have_their_score_in_order(folder: Path, reranker: ServerProcess) -> None:
    first, second = sentences(6, 5, 10), sentences(7, 5)
    logits, _ = of_transformers(folder, first, second)
    body = {"model": "m", "text_1": first, "text_2": second}
    answer = post(reranker.url + "/v1/score", body)[2]
    assert [one["index"] for one in answer["data"]] == list(range(5))
    found = [one["score"] for one in answer["data"]]
    assert found == pytest.approx([sigmoid(value) for value in logits[:, 0]], abs=1e-5)
    [one] = post(reranker.url + "/score", body | {"text_1": first[0], "text_2": second[0]})[2]["data"]
    assert one["score"] == pytest.approx(found[0], abs=1e-5)
    status, _, answer = post(reranker.url + "/v1/score", body | {"text_1": first[:2]})
    assert (status, answer["error"]["param"]) == (400, "text_1")


def test_requests_that_share_batches_have_the_scores_of_each_alone(reranker: ServerProcess) -> None:
    bodies = [{"model": "m", "query": QUERY, "documents": sentences(seed, 1 + seed % 7)} for seed in range(30)]
    alone = [post(reranker.url + "/v1/rerank", body)[2]["results"] for body in bodies]
    batches = reranker.metric("slipway_server_batch_rows_count")
    with ThreadPoolExecutor(12) as pool:
        shared = list(pool.map(lambda body: post(reranker.url + "/v1/rerank", body)[2]["results"], bodies))
    assert reranker.metric("slipway_server_batch_rows_count") - batches < len(bodies)
    for one, other in zip(alone, shared, strict=True):
        known = {result["index"]: result["relevance_score"] for result in one}
        assert {result["index"]: result["relevance_score"] for result in other} == pytest.approx(known, abs=1e-5)


@pytest.mark.parametrize(
    "changes, param",
    [
        ({"query": ""}, "query"),
        ({"query": 5}, "query"),
        ({"query": "a\0b"}, "query"),
        ({"query": "a" * (1 << 18)}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"documents": ["a", "  "]}, "documents[1]"),
        ({"documents": ["a", {"text": "b\0"}]}, "documents[1]"),
        ({"documents": ["a", 5]}, "documents"),
        ({"documents": ["a", {"text": "b", "title": "c"}]}, "documents"),
        ({"query": "a" * 100_000, "documents": ["a"] * 1000}, "documents"),
        ({"top_n": -1}, "top_n"),
        ({"max_tokens_per_doc": 100}, "max_tokens_per_doc"),
        ({"truncate_prompt_tokens": 10}, "truncate_prompt_tokens"),
        ({"rank_fields": ["a"]}, "rank_fields"),
        ({"strange": 1}, "strange"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(reranker: ServerProcess, changes: dict[str, Any], param: str) -> None:
    body = {"model": "m", "query": QUERY, "documents": ["the ship", "a port"]}
    status, _, answer = post(reranker.url + "/v1/rerank", body | changes)
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_half_a_surrogate_pair_is_refused_and_the_server_lives(reranker: ServerProcess) -> None:
    for text in (rb"\ud800", rb"\ud800 and more", rb"\udc00"):
        body = b'{"model": "m", "query": "a", "documents": ["' + text + b'"]}'
        assert post(reranker.url + "/v1/rerank", body)[0] == 400
    status, _, answer = post(reranker.url + "/classify", {"model": "m", "input": "a"})
    assert (status, answer["error"]["param"]) == (400, "model")
    assert reranker.metric("slipway_server_engine_crashes_total") == 0


def test_a_reranker_takes_the_protocol_of_tensors_too(reranker: ServerProcess) -> None:
    texts = {"text": ["the ship", "a port"], "text_pair": ["sails", "the harbour"]}
    inputs = [{"name": name, "datatype": "BYTES", "shape": [2], "data": data} for name, data in texts.items()]
    status, _, answer = post(reranker.url + "/v2/models/m/infer", {"inputs": inputs})
    assert status == 200 and answer["outputs"][0]["shape"] == [2, 1], answer
    inputs[1]["data"] = ["a", "\0"]
    status, _, answer = post(reranker.url + "/v2/models/m/infer", {"inputs": inputs})
    assert status == 400 and "text_pair[1]" in answer["error"]


def test_a_classifier_names_labels_with_probabilities(tmp_path: Path) -> None:
    folder = encoders.bert(tmp_path, encoders.LABELS)
    texts, labels = sentences(8, 6), list(encoders.LABELS.values())
    logits, lengths = of_transformers(folder, texts)
    with ServerProcess(folder, *FLAGS, "--task", "classify", "--format", "transformers") as server:
        url = server.wait_ready().url
        status, _, answer = post(url + "/classify", {"model": "m", "input": texts})
        assert status == 200 and answer["labels"] == labels, answer
        for row, one in zip(logits, answer["data"], strict=True):
            weights = [math.exp(value) for value in row]
            assert one["probs"] == pytest.approx([value / sum(weights) for value in weights], abs=1e-5)
            assert one["label"] == labels[int(row.argmax())] and one["num_classes"] == 3
        assert answer["usage"]["prompt_tokens"] == sum(lengths)
        found = post(url + "/api/v1/predict", {"model": "m", "input": {"text": texts[0]}, "top_k": 2})[2]
        assert found["prediction"] == labels[int(logits[0].argmax())] and len(found["top_k"]) == 2
        status, _, answer = post(url + "/v1/rerank", {"model": "m", "query": "a", "documents": ["b"]})
        assert (status, answer["error"]["param"]) == (400, "model")
        status, _, answer = post(url + "/classify", {"model": "m", "input": ["a", ""]})
        assert (status, answer["error"]["param"]) == (400, "input[1]")
