"""A reranker among the models of a pool: loaded on demand, by the name in the body."""

import json
from pathlib import Path

import pytest

from tests.predict.texts import encoders
from tests.server.process import ServerProcess, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_pool_loads_a_reranker_for_its_first_request(tmp_path: Path) -> None:
    encoders.bert(tmp_path / "ranker")
    file = tmp_path / "pool.json"
    file.write_text(json.dumps({"models": [{"name": "ranker", "path": "ranker", "task": "rerank"}]}))
    flags = ("--task", "predict", "--pool-config", str(file), "--pool-load-timeout", "120")
    with ServerProcess(tmp_path, *flags) as server:
        url = server.wait_ready().url
        body = {"model": "ranker", "query": "what is a port", "documents": ["the ship", "a harbour"]}
        status, _, answer = post(url + "/v1/rerank", body)
        assert status == 200 and len(answer["results"]) == 2, answer
        status, _, answer = post(url + "/v1/rerank", body | {"model": "other"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
