"""Requests through a real process of a model: batches, failures of one row, crashes, hangs, memory."""

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy
import pytest

from slipway_predict.batcher import BatchQueueFull, BatchRules, DeadlineMissed
from slipway_predict.executor import InferRequest, ModelCrashed, ModelFailed
from slipway_predict.tensors import Tensor
from testkit.until import until_async
from tests.predict import onnx_models
from tests.predict.running import Running, request, running

pytestmark = pytest.mark.integration

HANGS = 10**18


async def values(model: Running, *indices: int) -> list[float]:
    (tensor,) = await model.executor.infer(request("index", "INT64", indices, "value"))
    return list(tensor.array.tolist())


async def test_requests_of_one_shape_share_batches_and_each_gets_its_rows(tmp_path: Path) -> None:
    onnx_models.table(tmp_path)
    async with running(tmp_path) as model:
        answers = await asyncio.gather(*(values(model, index % 10, 3) for index in range(100)))
        assert answers == [[index % 10 * 10.0, 30.0] for index in range(100)]
        assert sum(model.batches) == 200 and len(model.batches) <= 10


async def test_a_row_that_the_model_fails_on_fails_alone(tmp_path: Path) -> None:
    onnx_models.table(tmp_path)
    async with running(tmp_path) as model:
        calls = [values(model, 99 if index == 7 else 1) for index in range(20)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [index for index, answer in enumerate(answers) if answer != [10.0]] == [7]
        assert isinstance(answers[7], ModelFailed) and "out of data bounds" in str(answers[7])
        assert model.crashes == 0


async def test_bfloat16_passes_as_its_bits(tmp_path: Path) -> None:
    onnx_models.identity(tmp_path, ("BF16", "FP32"))
    async with running(tmp_path) as model:
        rows = InferRequest(
            (
                Tensor("x_BF16", "BF16", numpy.array([[0x3F80, 0x7FC0]], "<u2")),
                Tensor("x_FP32", "FP32", numpy.array([[1, 2]], "<f4")),
            ),
            ("y_BF16", "y_FP32"),
        )
        answers = await asyncio.gather(*(model.executor.infer(rows) for _ in range(3)))
        for answer in answers:
            assert [(one.datatype, one.array.tolist()) for one in answer] == [
                ("BF16", [[0x3F80, 0x7FC0]]), ("FP32", [[1.0, 2.0]]),
            ]  # fmt: skip


async def test_requests_with_a_number_that_is_not_finite_are_counted_once_each(tmp_path: Path) -> None:
    """Beside others in one batch, and where such a request is split over batches."""
    onnx_models.identity(tmp_path, ("FP32",))
    async with running(tmp_path, BatchRules(max_size=8)) as model:
        rows = [[[1, 2]], [[1, numpy.nan]], [[3, 4]], [[numpy.inf, 1]] * 20, [[5, 6]] * 20]
        await asyncio.gather(*(model.executor.infer(request("x_FP32", "FP32", one, "y_FP32")) for one in rows))
        assert model.non_finite == 2


async def test_an_oversize_request_is_split_in_order(tmp_path: Path) -> None:
    onnx_models.table(tmp_path)
    async with running(tmp_path, BatchRules(max_size=8)) as model:
        answer, other = await asyncio.gather(values(model, *(n % 10 for n in range(101))), values(model, 5))
        assert answer == [n % 10 * 10.0 for n in range(101)] and other == [50.0]
        assert max(model.batches) == 8


async def test_a_wrong_number_of_rows_is_an_error_of_its_request(tmp_path: Path) -> None:
    onnx_models.positive(tmp_path)
    async with running(tmp_path) as model:
        good, bad = request("x", "FP32", [1, 2], "y"), request("x", "FP32", [1, 0], "y")
        answers = await asyncio.gather(*map(model.executor.infer, (good, bad, good)), return_exceptions=True)
        assert isinstance(answers[1], ModelFailed) and "1 rows of 'y' for 2 rows" in str(answers[1])
        for answer in (answers[0], answers[2]):
            assert isinstance(answer, list) and answer[0].array.tolist() == [1.0, 2.0]


async def test_a_model_whose_rows_depend_on_one_another_gets_no_batches(tmp_path: Path) -> None:
    onnx_models.centred(tmp_path)
    async with running(tmp_path) as model:
        assert not model.ready[0].description.batched
        rows = request("x", "FP32", [[0, 0], [2, 4]], "y")
        answers = await asyncio.gather(*(model.executor.infer(rows) for _ in range(5)))
        assert all(answer[0].array.tolist() == [[-1, -2], [1, 2]] for answer in answers)


async def test_a_hang_fails_its_batch_once_and_what_waits_goes_on(tmp_path: Path) -> None:
    onnx_models.loop(tmp_path)
    async with running(tmp_path, batch_timeout_s=1.0) as model:
        hanging = asyncio.create_task(model.executor.infer(request("count", "INT64", [HANGS], "y")))
        await until_async(lambda: model.executor.running, "the batch that hangs")
        waiting = asyncio.create_task(model.executor.infer(request("count", "INT64", [3], "y")))
        with pytest.raises(ModelCrashed, match="more than 1 s"):
            await hanging
        assert (await waiting)[0].array.tolist() == [3]
        assert (model.crashes, len(model.ready)) == (1, 2)


@pytest.mark.parametrize("fatal", [signal.SIGSEGV, signal.SIGKILL])
async def test_a_crash_fails_its_batch_once_and_what_waits_goes_on(tmp_path: Path, fatal: int) -> None:
    onnx_models.loop(tmp_path)
    async with running(tmp_path) as model:
        computed = asyncio.create_task(model.executor.infer(request("count", "INT64", [HANGS], "y")))
        await until_async(lambda: model.executor.running, "the batch that crashes")
        waiting = asyncio.create_task(model.executor.infer(request("count", "INT64", [4], "y")))
        os.kill(model.process.pid, fatal)
        with pytest.raises(ModelCrashed, match=f"signal {int(fatal)} while it computed"):
            await computed
        assert (await waiting)[0].array.tolist() == [4]


async def test_a_process_that_ends_while_it_is_idle_is_started_again(tmp_path: Path) -> None:
    onnx_models.table(tmp_path)
    async with running(tmp_path) as model:
        os.kill(model.process.pid, signal.SIGKILL)
        await until_async(lambda: len(model.ready) == 2, "the second process")
        assert await values(model, 2) == [20.0]


async def test_memory_is_limited_and_more_of_it_fails_its_request_alone(tmp_path: Path) -> None:
    onnx_models.greedy(tmp_path)
    async with running(tmp_path, memory_bytes=512 << 20) as model:
        with pytest.raises((ModelFailed, ModelCrashed)):
            await model.executor.infer(request("count", "INT64", [1 << 30], "y"))
        await until_async(model.loaded.is_set, "the process")
        assert (await model.executor.infer(request("count", "INT64", [5], "y")))[0].array.tolist() == [5.0]


async def test_a_client_that_leaves_takes_nothing_from_its_batch(tmp_path: Path) -> None:
    onnx_models.table(tmp_path)
    async with running(tmp_path) as model:
        calls = [asyncio.create_task(values(model, index)) for index in range(10)]
        await asyncio.sleep(0)
        calls[4].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [answer for index, answer in enumerate(answers) if index != 4] == [
            [index * 10.0] for index in range(10) if index != 4
        ]
        assert model.executor.batcher.waiting == 0 and not model.executor._pending


async def test_an_idle_model_takes_a_request_at_once_and_no_cpu(tmp_path: Path) -> None:
    onnx_models.table(tmp_path)
    async with running(tmp_path) as model:
        await values(model, 1)
        before, began = sum(model.process.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(2.0)
        assert sum(model.process.cpu_times()[:2]) - before <= 0.01 * (time.monotonic() - began) + 0.01
        wall = time.perf_counter()
        await values(model, 1)
        assert time.perf_counter() - wall < 10.0


async def test_a_full_queue_and_a_deadline_refuse_by_name(tmp_path: Path) -> None:
    onnx_models.loop(tmp_path)
    async with running(tmp_path, BatchRules(max_queue=1), batch_timeout_s=5.0) as model:
        hanging = asyncio.create_task(model.executor.infer(request("count", "INT64", [HANGS], "y")))
        await until_async(lambda: model.executor.running, "the batch that hangs")
        late = asyncio.create_task(model.executor.infer(request("count", "INT64", [1], "y", timeout_s=0.3)))
        await until_async(lambda: model.executor.batcher.waiting, "the request that waits")
        with pytest.raises(BatchQueueFull):
            await model.executor.infer(request("count", "INT64", [1], "y"))
        with pytest.raises(DeadlineMissed):
            await late
        assert model.executor.batcher.waiting == 0
        with pytest.raises(ModelCrashed):
            await hanging
