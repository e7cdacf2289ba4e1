"""A pool over HTTP, with the process of a real server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.until import until
from tests.predict import onnx_models, trained
from tests.predict.pool.running import write
from tests.server.process import ServerProcess, get, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW = [5.1, 3.5, 1.4, 0.2]
FORMATS = ("onnx", "xgboost", "lightgbm", "skops")
FEATURES = dict(zip(trained.FEATURES, ROW, strict=True))


def pool_server(root: Path, *flags: str) -> ServerProcess:
    return ServerProcess(root, "--task", "predict", "--pool-config", str(root / "pool.json"), *flags)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model of each format and one of tensors; onnx in two versions."""
    found = tmp_path_factory.mktemp("pool")
    trained.save_all(found)
    onnx_models.table(found / "table")
    models: list[dict[str, Any]] = [{"name": f"iris/{name}", "path": name, "version": "1"} for name in FORMATS]
    models[0] |= {"default": True}
    models += [models[0] | {"version": "2", "path": "skops", "default": False}]
    write(found, *models, {"name": "table", "path": "table", "pinned": True, "max_in_flight": 1000})
    return found


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[ServerProcess]:
    with pool_server(root) as process:
        yield process.wait_ready()


def test_models_of_every_format_answer_by_every_api(server: ServerProcess) -> None:
    for name in FORMATS:
        status, _, answer = post(f"{server.url}/api/v1/models/iris/{name}/predict", {"inputs": [{"features": ROW}]})
        assert status == 200 and answer["model_version"] == "1", answer
        body = {"model": f"iris/{name}", "input": FEATURES if name == "xgboost" else {"features": ROW}}
        assert post(f"{server.url}/api/v1/predict", body)[0] == 200
        status, _, answer = post(f"{server.url}/v1/models/iris/{name}:predict", {"instances": [ROW]})
        assert status == 200 and len(answer["predictions"]) == 1, answer
        status, body_ = get(f"{server.url}/v2/models/iris/{name}")
        described = json.loads(body_)
        assert (status, described["name"]) == (200, f"iris/{name}")
        (tensor,) = described["inputs"]
        given = {"name": tensor["name"], "datatype": tensor["datatype"], "shape": [1, 4], "data": ROW}
        status, _, answer = post(f"{server.url}/v2/models/iris/{name}/infer", {"inputs": [given]})
        assert (status, answer["model_name"]) == (200, f"iris/{name}"), answer
        assert get(f"{server.url}/v2/models/iris/{name}/ready")[0] == 200


def test_versions_are_models_of_their_own(server: ServerProcess) -> None:
    url = f"{server.url}/api/v1/models/iris/onnx/predict"
    for version, wanted in ((None, "1"), ("1", "1"), ("2", "2")):
        body = {"inputs": [{"features": ROW}], "params": {"version": version} if version else {}}
        assert post(url, body)[2]["model_version"] == wanted
    assert json.loads(get(f"{server.url}/v2/models/iris/onnx")[1])["versions"] == ["1", "2"]
    status, _, answer = post(url, {"inputs": [ROW], "params": {"version": "3"}})
    assert (status, answer["error"]["code"]) == (404, "version_not_found")
    assert post(f"{server.url}/v2/models/other/infer", {"inputs": []})[0] == 404


def test_the_repository_lists_loads_and_unloads(server: ServerProcess) -> None:
    def state(name: str) -> tuple[str, str]:
        listed = json.loads(send(f"{server.url}/v2/repository/index", b"")[1])
        return next((one["state"], one["reason"]) for one in listed if one["name"] == name)

    def command(name: str, what: str, body: bytes = b"") -> tuple[int, bytes]:
        return send(f"{server.url}/v2/repository/models/{name}/{what}", body)

    assert command("iris/lightgbm", "load") == (200, b"{}") and state("iris/lightgbm") == ("READY", "")
    assert command("iris/lightgbm", "unload", b'{"parameters": {"unload_dependents": false}}')[0] == 200
    assert state("iris/lightgbm") == ("UNAVAILABLE", "unloaded")
    assert get(f"{server.url}/v2/models/iris/lightgbm/ready")[0] == 503
    for what, body, status, word in (
        ("load", b'{"parameters": {"config": "{}"}}', 400, "'config' is not supported"),
        ("unload", b'{"parameters": {"unload_dependents": 1}}', 400, "must be true or false"),
        ("load", b"[]", 400, "no request of the repository extension"),
        ("load", b"[" * 50_000, 400, ""),
        ("unload", b"", 409, "'table' unversioned is pinned"),
    ):
        answer = command("table", what, body)
        assert answer[0] == status and word in answer[1].decode(), answer
    assert command("other", "load")[0] == 404 and command("other", "unload")[0] == 404


def test_metrics_have_the_model_as_a_label_and_only_models_of_the_file(server: ServerProcess) -> None:
    index = {"name": "index", "datatype": "INT64", "shape": [2], "data": [1, 2]}
    before = server.metric('slipway_server_batch_rows_sum{model_name="table"')
    assert post(f"{server.url}/v2/models/table/infer", {"inputs": [index]})[0] == 200
    post(f"{server.url}/v2/models/a-stranger/infer", {"inputs": [index]})
    assert server.metric('slipway_server_batch_rows_sum{model_name="table"') == before + 2
    assert server.metric('slipway_server_pool_model_memory_bytes{model_name="table"') > 1 << 20
    page = get(f"{server.url}/metrics")[1].decode()
    assert "a-stranger" not in page
    assert page.count("# TYPE slipway_server_batch_rows histogram") == 1
    statistics = json.loads(get(f"{server.url}/v2/models/table/stats")[1])["model_stats"]
    assert [one["inference_count"] for one in statistics] == [before + 2]


def test_a_wrong_file_ends_the_server_with_the_field(tmp_path: Path) -> None:
    write(tmp_path, {"name": "a", "path": "../a"})
    with pool_server(tmp_path) as process:
        assert process.wait() == 65
    assert any("models[0].path" in line["msg"] for line in process.lines)


def test_a_slow_load_answers_503_with_retry_after_and_a_retry_is_served(root: Path) -> None:
    with pool_server(root, "--pool-load-timeout", "0.05") as process:
        process.wait_ready()
        url = f"{process.url}/api/v1/models/iris/skops/predict"
        status, headers, answer = post(url, {"inputs": [{"features": ROW}]})
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "loading", "2")
        until(lambda: post(url, {"inputs": [{"features": ROW}]})[0] == 200, "the model", 60)
        process.process.terminate()
        assert process.wait() == 0


@pytest.mark.extended
def test_thirty_models_share_a_pod_and_give_their_memory_back(tmp_path: Path) -> None:
    """Of each format some, ten in memory at a time; then all unloaded."""
    trained.save_all(tmp_path)
    kinds = [FORMATS[index % len(FORMATS)] for index in range(30)]
    write(tmp_path, *({"name": f"m{index}", "path": kind} for index, kind in enumerate(kinds)))
    slow = ("--pool-load-timeout", "55")  # less than what a request of this test waits for
    with pool_server(tmp_path, "--pool-max-loaded", "10", "--pool-min-residency", "0", *slow) as process:
        process.wait_ready()
        pool = psutil.Process(process.process.pid)
        warm_up(process)
        empty = footprint(pool)
        began, most = time.monotonic(), 0
        for turn in range(2):
            for index in range(30):
                url = f"{process.url}/api/v1/models/m{index}/predict"
                status, _, answer = post(url, {"inputs": [{"features": ROW}]})
                assert status == 200 and len(answer["predictions"]) == 1, (turn, index, answer)
                assert len(pool.children()) <= 10
                most = max(most, footprint(pool))
        seconds = time.monotonic() - began
        for index in range(30):
            assert send(f"{process.url}/v2/repository/models/m{index}/unload", b"")[0] == 200
        assert pool.children() == []
        left = footprint(pool)
        print(f"\n60 loads in {seconds:.0f} s; MiB empty {empty >> 20}, most {most >> 20}, after {left >> 20}")
        assert most - empty > 200 << 20
        assert left - empty < 16 << 20


def warm_up(process: ServerProcess) -> None:
    """What the HTTP process itself allocates with its first request and first load is no model's memory."""
    assert post(f"{process.url}/api/v1/models/m0/predict", {"inputs": [{"features": ROW}]})[0] == 200
    assert send(f"{process.url}/v2/repository/models/m0/unload", b"")[0] == 200


def footprint(pool: psutil.Process) -> int:
    """Memory of the pool and of its models without the pages that they share."""
    found = pool.memory_info().rss
    for child in pool.children():
        memory = child.memory_info()
        found += memory.rss - memory.shared
    return found


def send(url: str, body: bytes) -> tuple[int, bytes]:
    status, _, answer = post(url, body)
    return status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
