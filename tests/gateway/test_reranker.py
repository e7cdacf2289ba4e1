"""A reranker behind the gateway: a real server, the model by its name in the body, errors as it writes them."""

from pathlib import Path

import pytest

from tests.predict.texts import encoders
from tests.server.process import ServerProcess

from .harness import gateway, table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def test_documents_are_ranked_behind_the_gateway(tmp_path: Path) -> None:
    folder = encoders.bert(tmp_path)
    body = {"model": "m", "query": "what is the port", "documents": ["a ship sails", "the captain", "of the harbour"]}
    with ServerProcess(folder, "--task", "rerank", "--served-model-name", "m") as server:
        url = server.wait_ready().url
        async with gateway() as gate:
            gate.balancer.publish(table(1, ("aaaaaaaaaa", 100, [url]), model="m"))
            async with await gate.post(body | {"top_n": 2}, "/v1/rerank") as answer:
                found = await answer.json()
                assert answer.status == 200, found
                assert answer.headers["X-Slipway-Revision"] == "aaaaaaaaaa"
            first, second = found["results"]
            assert first["relevance_score"] >= second["relevance_score"]
            async with await gate.post(body | {"top_n": 2}, "/v2/rerank") as answer:
                assert (answer.status, (await answer.json())["results"]) == (200, found["results"])
            async with await gate.post(body | {"model": "away"}, "/v2/rerank") as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")
            pairs = {"model": "m", "text_1": body["query"], "text_2": body["documents"]}
            async with await gate.post(pairs, "/v1/score") as answer:
                scores = [one["score"] for one in (await answer.json())["data"]]
            assert scores[first["index"]] == pytest.approx(first["relevance_score"], abs=1e-6) == max(scores)
            async with await gate.post(body | {"documents": ["a", ""]}, "/v1/rerank") as answer:
                assert (answer.status, (await answer.json())["error"]["param"]) == (400, "documents[1]")
