"""Classic models behind the gateway: real servers of two formats, one route, versions, and every path."""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from slipway_gateway.routing.table import RouteTable
from testkit import pictures
from tests.predict import trained
from tests.predict.conftest import PREDICT
from tests.predict.images.conftest import DIGITS
from tests.server.process import ServerProcess

from .harness import Gateway, gateway, table
from .tenants import PEPPER, bearer, make_key, tenant

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW = [6.9, 3.1, 5.4, 2.1]
LEFT, RIGHT = "aaaaaaaaaa", "bbbbbbbbbb"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    root = tmp_path_factory.mktemp("models")
    trained.save_all(root)
    with (
        ServerProcess(root / "onnx", *PREDICT) as onnx,
        ServerProcess(root / "xgboost", *PREDICT, "--model-version", "v2", "--model-revision", RIGHT) as trees,
    ):
        yield onnx.wait_ready(), trees.wait_ready()


@pytest.fixture
async def gate(servers: tuple[ServerProcess, ServerProcess]) -> AsyncIterator[Gateway]:
    onnx, trees = servers
    async with gateway() as made:
        made.balancer.publish(routes(50, onnx, trees))
        yield made


def routes(weight: int, onnx: ServerProcess, trees: ServerProcess) -> RouteTable:
    return table(1, (LEFT, 100 - weight, [onnx.url]), (RIGHT, weight, [trees.url]), model="m")


def infer(name: str) -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": [1, 4], "datatype": "FP32", "data": ROW}]}


async def test_requests_are_split_by_weight_and_both_answer(gate: Gateway) -> None:
    by_revision: dict[str, int] = {}
    for _ in range(40):
        async with await gate.post({"instances": [ROW]}, "/v1/models/m:predict") as answer:
            assert (answer.status, await answer.json()) == (200, {"predictions": [2]})
            revision = answer.headers["X-Slipway-Revision"]
            by_revision[revision] = by_revision.get(revision, 0) + 1
    assert set(by_revision) == {LEFT, RIGHT}, "the same rows, by two versions"


async def test_a_version_in_the_path_or_the_body_pins_the_revision(gate: Gateway) -> None:
    for _ in range(6):
        async with await gate.post(infer("input"), f"/v2/models/m/versions/{RIGHT}/infer") as answer:
            assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, RIGHT)
            assert (await answer.json())["model_version"] == "v2"
        body = {"inputs": [{"features": ROW}], "params": {"version": LEFT}}
        async with await gate.post(body, "/api/v1/models/m/predict") as answer:
            assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, LEFT)
    async with await gate.post(infer("input"), "/v2/models/m/versions/v9/infer") as answer:
        assert answer.status == 404 and "v9" in (await answer.json())["error"]


async def test_binary_data_passes_in_both_directions(gate: Gateway) -> None:
    import numpy

    data = numpy.array(ROW, "<f4").tobytes()
    head = json.dumps(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [
                {"name": "input", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
            ],
        }
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    async with await gate.post(head + data, f"/v2/models/m/versions/{RIGHT}/infer", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        content, size = await answer.read(), int(answer.headers["Inference-Header-Content-Length"])
    outputs = {one["name"]: one for one in json.loads(content[:size])["outputs"]}
    assert outputs["prediction"]["parameters"] == {"binary_data_size": 8} and content.endswith(b"\2" + bytes(7))


async def test_the_simple_endpoint_and_errors_have_the_shape_of_their_api(gate: Gateway) -> None:
    async with await gate.post({"model": "m", "input": {"features": ROW}}, "/api/v1/predict") as answer:
        assert answer.status == 200 and (await answer.json())["prediction"] == 2
    async with await gate.post({"model": "n", "input": {}}, "/api/v1/predict") as answer:
        assert answer.status == 404 and (await answer.json())["error"]["code"] == "model_not_found"
    async with await gate.post({"inputs": []}, "/v2/models/n/infer") as answer:
        assert (answer.status, await answer.json()) == (
            404, {"error": "The model 'n' does not exist.", "code": "model_not_found"},
        )  # fmt: skip


async def test_descriptions_come_from_a_server_and_health_from_the_gateway(gate: Gateway) -> None:
    for path in ("/health", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/config"):
        async with gate.client.get(gate.url + path) as answer:
            assert answer.status == 200, path
    async with gate.client.get(f"{gate.url}/v2/models/m/versions/{RIGHT}") as answer:
        assert (await answer.json())["platform"] == "xgboost"
    async with await gate.post({}, "/v2/repository/index") as answer:
        assert {one["version"] for one in await answer.json()} == {LEFT, RIGHT}
    async with await gate.post({}, "/v2/models/m") as answer:
        assert answer.status == 405


async def test_a_tenant_uses_and_sees_its_own_models_alone(servers: tuple[ServerProcess, ServerProcess]) -> None:
    mine, other = make_key("mine01"), make_key("other1")
    tenants = (tenant("team-a", mine, models=("m",)), tenant("team-b", other, models=("n",)))
    posts = (("/v1/models/m:predict", {"instances": [ROW]}), ("/api/v1/predict", {"model": "m", "input": {}}))
    async with gateway(tenants, PEPPER, auth_mode="required") as made:
        made.balancer.publish(routes(50, *servers))
        for path, body in posts:
            async with await made.post(body, path) as answer:
                assert answer.status == 401, path
            async with await made.post(body, path, headers=bearer(other)) as answer:
                assert answer.status == 404, path
        for headers, status in (({}, 401), (bearer(other), 404), (bearer(mine), 200)):
            async with made.client.get(f"{made.url}/v2/models/m/ready", headers=headers) as answer:
                assert answer.status == status
        for key, names in ((mine, {"m"}), (other, set())):
            async with await made.post({}, "/v2/repository/index", headers=bearer(key)) as answer:
                assert {one["name"] for one in await answer.json()} == names
        async with await made.post(posts[0][1], posts[0][0], headers=bearer(mine)) as answer:
            assert answer.status == 200


async def test_an_image_passes_as_text_and_as_the_whole_body() -> None:
    file = pictures.encoded(pictures.digit(3))
    row = {"image": base64.b64encode(file).decode()}
    with ServerProcess(DIGITS, *PREDICT) as digits:
        digits.wait_ready()
        async with gateway() as gate:
            gate.balancer.publish(table(1, (LEFT, 100, [digits.url]), model="m"))
            async with await gate.post({"model": "m", "inputs": [row, row], "top_k": 2}, "/api/v1/predict") as answer:
                assert [one["prediction"] for one in await answer.json()] == ["three", "three"]
            headers = {"Content-Type": "image/png"}
            async with await gate.post(file, "/v2/models/m/infer", headers=headers) as answer:
                [output] = (await answer.json())["outputs"]
                assert output["data"].index(max(output["data"])) == 3
            async with await gate.post({"model": "m", "inputs": [row, {"image": "AAAA"}]}, "/api/v1/predict") as answer:
                assert (answer.status, (await answer.json())["error"]["param"]) == (400, "inputs[1]")
