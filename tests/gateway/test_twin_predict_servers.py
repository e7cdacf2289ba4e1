"""Copies of requests to real servers of classic models, over every path: only an equal model agrees with stable."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from slipway_contracts.twin_shadow import PredictionTolerance, TwinLatency, TwinShadow
from slipway_predict.http.message_types import ModelInferRequest, ModelInferResponse
from testkit.until import until_async
from tests.server.process import ServerProcess

from .grpc_gateway import INFER, GrpcGateway, grpc_gateway
from .harness import table
from .test_agreement import counted, mirrored
from .test_mirror import results as results_of_mirrors
from .test_twins import counts, events, results, shadowing, until_results

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FLAGS = ("--task", "predict", "--served-model-name", "chat", "--host", "0.0.0.0")
ROWS = [[5.1, 3.5, 1.4, 0.2], [6.0, 2.7, 4.5, 1.5], [6.9, 3.1, 5.4, 2.1]]
SHADOW = TwinShadow("c", "s", 100, 1000, latencies=(TwinLatency("e2e", 15),), tolerance=PredictionTolerance(1000, 1000))
Send = Callable[[GrpcGateway, list[float]], Awaitable[list[int]]]


def save(folder: Path, shift: int) -> Path:
    """A classifier of irises whose labels are moved by so many places."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, labels = load_iris(return_X_y=True)
    pipeline: Any = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, (labels + shift) % 3)
    folder.mkdir()
    (folder / "model.onnx").write_bytes(to_onnx(pipeline, rows[:1].astype("f4")).SerializeToString())
    return folder


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    root = tmp_path_factory.mktemp("models")
    first, second = (ServerProcess(save(root / str(shift), shift), *FLAGS) for shift in (0, 1))
    with first, second:
        yield first.wait_ready(), second.wait_ready()


@pytest.fixture
async def made() -> AsyncIterator[GrpcGateway]:
    async with grpc_gateway() as found:
        yield found


async def posted(made: GrpcGateway, path: str, body: Any, **headers: str) -> tuple[bytes, Any]:
    async with await made.gate.post(body, path, headers=headers) as answer:
        assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, "s"), await answer.text()
        return await answer.read(), answer.headers


async def simple(made: GrpcGateway, row: list[float]) -> list[int]:
    body, _ = await posted(made, "/api/v1/predict", {"model": "chat", "input": {"features": row}})
    return [json.loads(body)["prediction"]]


async def named(made: GrpcGateway, row: list[float]) -> list[int]:
    body, _ = await posted(made, "/api/v1/models/chat/predict", {"inputs": [{"features": row}] * 2})
    return list(json.loads(body)["predictions"])


async def of_kserve(made: GrpcGateway, row: list[float]) -> list[int]:
    body, _ = await posted(made, "/v1/models/chat:predict", {"instances": [row]})
    return list(json.loads(body)["predictions"])


async def of_tensors(made: GrpcGateway, row: list[float]) -> list[int]:
    tensor = {"name": "X", "shape": [1, 4], "datatype": "FP32", "data": row}
    body, _ = await posted(made, "/v2/models/chat/infer", {"inputs": [tensor]})
    return list(json.loads(body)["outputs"][0]["data"])


async def of_bytes(made: GrpcGateway, row: list[float]) -> list[int]:
    data = numpy.array(row, "<f4").tobytes()
    tensor = {"name": "X", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    sizes = {"Inference-Header-Content-Length": str(len(head))}
    body, headers = await posted(made, "/v2/models/chat/infer", head + data, **sizes)
    outputs = json.loads(body[: int(headers["Inference-Header-Content-Length"])])["outputs"]
    assert outputs[0]["datatype"] == "INT64" and outputs[0]["parameters"]["binary_data_size"] == 8
    begin = int(headers["Inference-Header-Content-Length"])
    return numpy.frombuffer(body[begin : begin + 8], "<i8").tolist()


async def over_grpc(made: GrpcGateway, row: list[float], *, typed: bool = False) -> list[int]:
    message = ModelInferRequest(model_name="chat")
    message.inputs.add(name="X", datatype="FP32", shape=[1, 4])
    if typed:
        message.inputs[0].contents.fp32_contents.extend(row)
    else:
        message.raw_input_contents.append(numpy.array(row, "<f4").tobytes())
    response = ModelInferResponse.FromString(await made.channel.unary_unary(INFER)(message.SerializeToString()))
    assert response.outputs[0].datatype == "INT64"
    return numpy.frombuffer(response.raw_output_contents[0], "<i8").tolist()


async def over_grpc_typed(made: GrpcGateway, row: list[float]) -> list[int]:
    return await over_grpc(made, row, typed=True)


SENDERS: list[Send] = [simple, named, of_kserve, of_tensors, of_bytes, over_grpc, over_grpc_typed]


@pytest.mark.parametrize("equal", [True, False])
async def test_pairs_of_each_path_agree_with_an_equal_model_alone(
    servers: tuple[ServerProcess, ServerProcess], made: GrpcGateway, *, equal: bool
) -> None:
    stable, other = servers
    # One process behind three names of this machine: to the gateway they are three pods.
    one, two, three = (stable.url.replace("127.0.0.1", name) for name in ("127.0.0.1", "localhost", "0.0.0.0"))
    made.gate.balancer.publish(shadowing([three if equal else other.url], [one], SHADOW, baseline=[two]))
    sent = 0
    for send in SENDERS:
        for label, row in enumerate(ROWS):
            assert set(await send(made, row)) == {label}, send.__name__
            sent += 1
            await until_results(made.gate, sent)
        wanted = {"compared": sent, "disagreed": 0 if equal else sent, "unread": 0, "failed": 0}
        assert counts(made.gate)["agreements"] == wanted, send.__name__
    assert results(made.gate) == {"paired": sent} and events(made.gate) == {}
    assert counts(made.gate)["latencies"]["e2e"]["pairs"] == sent


@pytest.mark.parametrize("equal", [True, False])
async def test_mirrored_requests_of_each_path_agree_with_an_equal_model_alone(
    servers: tuple[ServerProcess, ServerProcess], made: GrpcGateway, *, equal: bool
) -> None:
    stable, other = servers
    canary = stable.url.replace("127.0.0.1", "localhost") if equal else other.url
    made.gate.balancer.publish(mirrored(table(1, ("canary", 0, [canary]), ("s", 100, [stable.url]))))
    sent = 0
    for send in SENDERS:
        for row in ROWS:
            await send(made, row)
            sent += 1
            await until_async(lambda wanted=sent: sum(results_of_mirrors(made.gate).values()) == wanted)
        wanted = {"compared": sent} if equal else {"compared": sent, "disagreed": sent}
        assert counted(made.gate) == wanted, send.__name__


async def test_a_canary_that_is_gone_fails_all_copies(
    servers: tuple[ServerProcess, ServerProcess], made: GrpcGateway
) -> None:
    stable, _ = servers
    two = stable.url.replace("127.0.0.1", "localhost")
    made.gate.balancer.publish(shadowing(["http://127.0.0.1:1"], [stable.url], SHADOW, baseline=[two]))
    for sent, send in enumerate(SENDERS, 1):
        await send(made, ROWS[0])
        await until_results(made.gate, sent)
    assert counts(made.gate)["agreements"]["failed"] == len(SENDERS)
    assert events(made.gate) == {name: {"canary_only": len(SENDERS)} for name in ("bad", "errors")}
