"""What is read and written where requests are served, and what in a process of its own: counted before the work."""

import asyncio
import base64
import gzip
import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import psutil
import pytest

from slipway_predict.description import ModelDescription
from slipway_predict.http.bodies import row_bodies
from slipway_predict.http.bodies.infer_answer import PROTOBUF, InferAnswer
from slipway_predict.http.bodies.limits import ASIDE, HERE, MAX_TEXTS, Limits, TooLarge
from slipway_predict.http.bodies.messages import MODULE, Read, as_bytes, as_tensor, head, to_done
from slipway_predict.http.bodies.questions import INFER, Question, read
from slipway_predict.http.bodies.reader import BODIES, WORK_S
from slipway_predict.http.message_types import ModelInferRequest
from slipway_predict.process.messages import LoadModel
from slipway_predict.process.workers import WorkerRules, Workers
from slipway_predict.tensors import BYTES, Tensor, TensorSpec
from slipway_process.serving.errors import HttpError, Refusal
from testkit.until import until, until_async
from tests.predict import trained
from tests.predict.conftest import PREDICT
from tests.server.process import ServerProcess, post

pytestmark = pytest.mark.finding("F5")

ROW = [5.1, 3.5, 1.4, 0.2]
LIMIT_BYTES = 8 << 20
MODEL = ModelDescription(
    "p", "r", [TensorSpec("x", "FP32", (-1, 4))], [TensorSpec("y", "FP32", (-1, 3))], True, "regression"
)
TEXTS = ModelDescription("p", "r", [TensorSpec("x", BYTES, (-1, 1))], [TensorSpec("y", BYTES, (-1, 1))])


def infer(rows: int) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": ROW * rows}
    return json.dumps({"inputs": [tensor]}).encode()


def message(rows: int) -> bytes:
    made = ModelInferRequest(model_name="m")
    tensor = made.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    tensor.contents.fp32_contents.extend(ROW * rows)
    return bytes(made.SerializeToString())


def v1(rows: int) -> bytes:
    return json.dumps({"instances": [{"x": ROW}] * rows}).encode()


def zipped(rows: int) -> bytes:
    return gzip.compress(infer(rows).ljust(rows * 1000))


def question(kind: str, content_type: str = "application/json", **headers: str) -> Question:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Question(kind, content_type, given, LIMIT_BYTES)


KINDS: dict[str, tuple[Question, Callable[[int], bytes], int]] = {
    "values": (question(INFER), infer, 5000),
    "typed contents": (question(INFER, PROTOBUF), message, 5000),
    "rows": (question(row_bodies.V1), v1, HERE.rows + 1),
    "a compressed body": (question(INFER, Content_Encoding="gzip"), zipped, 2000),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_above_the_limits_of_the_loop_is_read_aside_and_equal(kind: str) -> None:
    given, make, many = KINDS[kind]
    small = read(given, make(100), MODEL, HERE).request
    assert small.inputs[0].array.tolist() == read(given, make(100), MODEL, ASIDE).request.inputs[0].array.tolist()
    with pytest.raises(TooLarge):
        read(given, make(many), MODEL, HERE)
    found = read(given.to_cross(), make(many), MODEL, ASIDE).request
    assert found.inputs[0].shape == (many, 4) and (found.inputs[0].array == numpy.array(ROW, "f4")).all()


@pytest.mark.parametrize("limits, texts", [(HERE, HERE.texts), (ASIDE, MAX_TEXTS)])
def test_texts_are_counted_before_one_is_made(limits: Limits, texts: int) -> None:
    given = question(INFER, Inference_Header_Content_Length="400")

    def body(rows: int) -> bytes:
        tensor = {"name": "x", "datatype": BYTES, "shape": [rows, 1], "parameters": {"binary_data_size": 4 * rows}}
        return json.dumps({"inputs": [tensor]}).encode().ljust(400) + bytes(4 * rows)

    assert read(given, body(texts), TEXTS, limits).request.inputs[0].rows == texts
    with pytest.raises(TooLarge, match=f"{texts + 1} texts together; {texts} is the limit"):
        read(given, body(texts + 1)[:500], TEXTS, limits)


# 20 kB with four values: the number of values says nothing of what making these integers costs.
LONG = json.dumps([[int("9" * 4200)] * 4])
LONG_NUMBERS = {
    "V1": (row_bodies.V1, f'{{"instances":{LONG}}}'),
    "simple rows": (row_bodies.SIMPLE, f'{{"model":"m","inputs":{LONG}}}'),
    "named rows": (row_bodies.NAMED, f'{{"inputs":{LONG}}}'),
    "V2": (INFER, f'{{"inputs":[{{"name":"x","datatype":"INT64","shape":[1,4],"data":{LONG}}}]}}'),
    "unused": (row_bodies.V1, f'{{"instances":[[1,2,3,4]],"parameters":{{"x":{LONG}}}}}'),
    "fractions": (row_bodies.V1, f'{{"instances":[[{",".join(["0." + "7" * 5000] * 4)}]]}}'),
}


@pytest.mark.parametrize("name", LONG_NUMBERS)
def test_long_numbers_are_read_aside_however_few_they_are(name: str) -> None:
    kind, body = LONG_NUMBERS[name]
    with pytest.raises(TooLarge, match="a number of 64 digits or more"):
        read(question(kind), body.encode(), MODEL, HERE)


def test_long_texts_and_numbers_of_doubles_are_read_at_once() -> None:
    texts = ModelDescription("p", "r", [TensorSpec("x", BYTES, (-1,))], TEXTS.outputs, True)
    body = json.dumps({"instances": [base64.b64encode(random.Random(6).randbytes(1 << 20)).decode()]}).encode()
    assert read(question(row_bodies.V1), body, texts, HERE).request.inputs[0].rows == 1
    numbers = json.dumps({"instances": [[1 / 3, -1e-30 / 7, 2**63, 1e17 / 3]] * 500}).encode()
    assert len(numbers) > HERE.values
    assert read(question(row_bodies.V1), numbers, MODEL, HERE).request.inputs[0].rows == 500


def test_numbers_as_bytes_are_read_and_written_at_once_whatever_their_size() -> None:
    given = question(INFER, Inference_Header_Content_Length="400")
    rows = 500_000
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": 16 * rows}}
    body = json.dumps({"inputs": [tensor]}).encode().ljust(400) + b"0" * (16 * rows)  # as digits: no number is there
    assert read(given, body, MODEL, HERE).request.inputs[0].rows == rows
    outputs = [Tensor("y", "FP32", numpy.zeros((rows, 3), "f4"))]
    InferAnswer(binary=True).check(outputs, HERE)
    with pytest.raises(TooLarge):
        InferAnswer().check(outputs, HERE)


def test_labels_of_all_rows_are_bounded_before_the_model_computes() -> None:
    labels = [f"label {n}" for n in range(1000)]
    model = ModelDescription(
        "p", "r", MODEL.inputs, MODEL.outputs, True, "classification", [*labels], probabilities="y"
    )
    body = json.dumps({"inputs": [{"x": ROW}] * 300, "params": {"top_k": 1000}}).encode()
    with pytest.raises(HttpError, match="300000 labels of 300 rows") as refused:
        read(question(row_bodies.NAMED), body, model, HERE)
    assert refused.value.param == "top_k"


@pytest.mark.integration
async def test_a_body_that_needs_more_memory_than_it_may_take_is_refused_and_the_process_goes_on() -> None:
    start = LoadModel("", "bodies", 1, 96 << 20, 1, "error")
    workers = Workers(WorkerRules(start, "read", BODIES, WORK_S, MODULE, idle_s=0.05))
    try:

        async def done(rows: int) -> Any:
            job = Read(question(INFER), MODEL)
            first, *_ = await workers.run([head(job), as_tensor("body", infer(rows))], [])
            return to_done.decode(as_bytes(first.array))

        refusal = await done(400_000)
        assert isinstance(refusal, Refusal) and (refusal.status, refusal.code) == (413, "too_costly"), refusal
        [process] = workers._idle
        assert not isinstance(await done(5000), Refusal)
        await process.ended()  # for it was idle
        await until_async(lambda: not workers._here, "it counts no more")
    finally:
        await workers.close()


@pytest.mark.integration
async def test_a_process_that_retires_has_ended_when_its_workers_are_closed() -> None:
    start = LoadModel("", "bodies", 1, 96 << 20, 1, "error")
    workers = Workers(WorkerRules(start, "read", BODIES, WORK_S, MODULE))
    await workers.warm_up()
    [process] = workers._idle
    workers._retire()
    await asyncio.sleep(0)  # it is in no list any more
    await workers.close()
    async with asyncio.timeout(0.001):
        await process.ended()  # at once: it has ended


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("trees")
    trained.save_trees(folder)
    with ServerProcess(folder, *PREDICT, "--trust-tenant-header") as process:
        yield process.wait_ready()


def rows(count: int) -> dict[str, Any]:
    return {"instances": [[value + n % 7 for value in ROW] for n in range(count)]}


def predicted(server: ServerProcess, body: Any, tenant: str = "") -> tuple[int, Any]:
    headers = {"X-Slipway-Tenant": tenant} if tenant else {}
    status, _, answer = post(f"{server.url}/v1/models/m:predict", body, headers)
    return status, answer


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_large_bodies_have_the_answers_of_small_ones(served: ServerProcess) -> None:
    large, small = rows(1400), rows(7)
    expected = post(f"{served.url}/v1/models/m:predict", small)[2]["predictions"] * 200
    assert predicted(served, large) == (200, {"predictions": expected})
    named, fields = f"{served.url}/api/v1/models/m/predict", [{"features": row} for row in large["instances"]]
    assert post(named, {"inputs": fields})[2]["predictions"] == expected
    simple = json.loads(post(f"{served.url}/api/v1/predict", {"model": "m", "inputs": fields})[2])
    assert [one["prediction"] for one in simple] == expected and simple[0]["model_version"] == "v1"
    data = [value for row in large["instances"] for value in row] * 4
    tensor = {"name": "input", "datatype": "FP32", "shape": [5600, 4], "data": data}
    _, _, answer = post(f"{served.url}/v2/models/m/infer", {"id": "7", "inputs": [tensor]})
    assert answer["id"] == "7" and answer["outputs"][0]["shape"][0] == 5600
    wrong = [*large["instances"][:-1], [1.0, 2.0]]
    status, answer = predicted(served, {"instances": wrong})
    assert status == 400 and "instances[1399]" in answer["error"]


def readers(server: ServerProcess) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if MODULE in child.cmdline()]


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.attack_class(15)
def test_large_bodies_of_one_tenant_hold_up_no_other_one(served: ServerProcess) -> None:
    """One tenant has half of the processes. What waits has a limit, and small bodies wait for none of it."""
    busy, other = 32 * "a", 32 * "b"
    assert predicted(served, rows(1400), busy)[0] == 200  # which starts a process that reads, and one that writes
    reader = min(readers(served), key=lambda process: process.create_time())
    before = len(readers(served))
    reader.send_signal(signal.SIGSTOP)
    found: list[int] = []
    sent = BODIES.share + BODIES.places + 3
    threads = [
        threading.Thread(target=lambda: found.append(predicted(served, rows(1400), busy)[0])) for _ in range(sent)
    ]
    try:
        for thread in threads:
            thread.start()
        until(lambda: len(found) == 3, "those without a place are refused")
        assert found == [429] * 3
        assert [predicted(served, rows(7), tenant)[0] for tenant in (busy, other)] == [200, 200]
        assert predicted(served, rows(1400), other)[0] == 200 and len(readers(served)) == before + 1
    finally:
        reader.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join()
    # The newest one that waited gave its place to the other tenant.
    assert sorted(found) == [200] * (sent - 4) + [429] * 4
