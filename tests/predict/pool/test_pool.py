"""A pool with real processes of models: loads, evictions, failures of one model beside others, changed files."""

import asyncio
import contextlib
import random
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from slipway_predict.executor import ModelCrashed, ModelFailed, ModelLost
from slipway_predict.pool.eviction import PoolLimits
from slipway_predict.pool.slot import LoadFailed, ModelBusy, ModelPinned, StillLoading, UnknownModel
from testkit.until import until_async
from tests.predict import onnx_models
from tests.predict.pool.running import LARGE, RunningPool, model_processes, running_pool, write
from tests.predict.running import request

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

HANGS = 10**18
TWO = PoolLimits(LARGE.memory_bytes, max_loaded=2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """table, a and b look a number up; loop hangs and greedy allocates on request; broken is no model."""
    onnx_models.table(tmp_path / "table")
    for name in ("a", "b"):
        shutil.copytree(tmp_path / "table", tmp_path / name)
    onnx_models.loop(tmp_path / "loop")
    onnx_models.greedy(tmp_path / "greedy")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.onnx").write_bytes(b"no model")
    limits = {"greedy": {"max_memory_bytes": 256 << 20}}
    names = ("table", "a", "b", "loop", "greedy", "broken")
    write(tmp_path, *({"name": name, "path": name} | limits.get(name, {}) for name in names))
    return tmp_path


async def value(pool: RunningPool, name: str, index: int = 3, version: str | None = None) -> float:
    (tensor,) = await pool.infer(name, request("index", "INT64", [index], "value"), version)
    return float(tensor.array[0])


async def test_a_request_loads_its_model_and_many_share_one_load(root: Path) -> None:
    async with running_pool(root) as pool:
        assert set(pool.states().values()) == {"UNAVAILABLE"}
        assert await asyncio.gather(*(value(pool, "table") for _ in range(20))) == [30.0] * 20
        assert pool.recorder.loads == ["table"] and pool.states()["table"] == "READY"


async def test_the_least_recently_used_model_leaves_and_its_process_ends(root: Path) -> None:
    async with running_pool(root, TWO) as pool:
        await value(pool, "table")
        process = pool.process("table")
        await value(pool, "a")
        await value(pool, "b")
        assert pool.recorder.evictions == [("table", "room")] and not process.is_running()
        await value(pool, "a")
        await value(pool, "table")
        assert pool.recorder.evictions == [("table", "room"), ("b", "room")]


async def test_memory_is_a_limit_and_a_size_is_measured(root: Path) -> None:
    async with running_pool(root) as pool:
        await value(pool, "table")
        resident = pool.pool.find("table").resident
        assert resident
        size = resident.size_bytes
        rss = psutil.Process(pool.process("table").pid).memory_info()
        # It was measured before the request, which took some pages more.
        assert rss.rss - rss.shared - (4 << 20) <= size <= rss.rss
    # For two models of that size there is no room, where each takes two thirds.
    async with running_pool(root, PoolLimits(size * 3 // 2, 32)) as pool:
        for name in ("table", "a", "table", "b"):
            await value(pool, name)
            assert pool.pool.loader.used_bytes <= size * 3 // 2
        assert [name for name, _ in pool.recorder.evictions] == ["table", "a", "table"]


async def test_a_model_that_a_request_holds_stays_and_others_wait_for_its_end(root: Path) -> None:
    async with running_pool(root, PoolLimits(LARGE.memory_bytes, 1), load_timeout_s=60.0) as pool:
        async with pool.pool.use(pool.pool.find("table")):
            waiting = asyncio.create_task(value(pool, "a"))
            await until_async(lambda: pool.states()["a"] == "LOADING", "the other load")
            await asyncio.sleep(0.5)
            assert pool.states() | {"table": "READY", "a": "LOADING"} == pool.states()
        assert await waiting == 30.0
        assert pool.recorder.evictions == [("table", "room")]


async def test_without_room_in_time_a_request_ends_and_the_model_is_not_blamed(root: Path) -> None:
    async with running_pool(root, PoolLimits(LARGE.memory_bytes, 1), load_timeout_s=1.0) as pool:
        while pool.states()["table"] != "READY":
            with contextlib.suppress(StillLoading):
                await pool.pool.load(pool.pool.find("table"))
        async with pool.pool.use(pool.pool.find("table")):
            with pytest.raises(StillLoading):
                await value(pool, "a")
            await until_async(lambda: pool.pool.find("a").load is None, "the end of the load")
            assert pool.pool.find("a").failure is None and pool.recorder.failures == []


async def test_a_model_just_loaded_is_not_evicted(root: Path) -> None:
    limits = PoolLimits(LARGE.memory_bytes, 1, min_residency_s=3.0)
    async with running_pool(root, limits) as pool:
        await value(pool, "table")
        resident = pool.pool.find("table").resident
        assert resident
        assert await value(pool, "a") == 30.0
        assert time.monotonic() >= resident.loaded_s + limits.min_residency_s


async def test_pinned_models_are_there_from_the_start_and_stay(root: Path) -> None:
    write(root, {"name": "table", "path": "table", "pinned": True}, *({"name": name, "path": name} for name in "ab"))
    async with running_pool(root, TWO) as pool:
        assert pool.states()["table"] == "READY"
        await value(pool, "a")
        await value(pool, "b")
        assert pool.recorder.evictions == [("a", "room")]
        with pytest.raises(ModelPinned, match="'table'"):
            await pool.pool.unload(pool.pool.versions("table"))


async def test_a_crash_or_a_hang_of_one_model_fails_its_requests_and_nothing_else(root: Path) -> None:
    async with running_pool(root) as pool:
        await value(pool, "table")
        hanging = asyncio.create_task(pool.infer("loop", request("count", "INT64", [HANGS], "y")))
        answers = []
        while not hanging.done():
            answers.append(await value(pool, "table"))
        with pytest.raises(ModelCrashed):
            await hanging
        assert set(answers) == {30.0}
        (counted,) = await pool.infer("loop", request("count", "INT64", [3], "y"))
        assert counted.array.tolist() == [3]
        first = pool.process("table").pid
        resident = pool.pool.find("loop").resident
        assert resident and resident.available
        pool.process("loop").send_signal(signal.SIGKILL)
        await until_async(lambda: not resident.available, "the second crash")
        assert await value(pool, "table") == 30.0 and pool.process("table").pid == first
        (counted,) = await pool.infer("loop", request("count", "INT64", [4], "y"))
        assert counted.array.tolist() == [4]


async def test_a_model_that_allocates_too_much_fails_alone(root: Path) -> None:
    async with running_pool(root) as pool:
        await value(pool, "table")
        with pytest.raises((ModelFailed, ModelCrashed)):
            await pool.infer("greedy", request("count", "INT64", [200_000_000], "y"))
        assert await value(pool, "table") == 30.0
        (summed,) = await pool.infer("greedy", request("count", "INT64", [3], "y"))
        assert summed.array.tolist() == [3.0]


async def test_a_model_that_crashes_too_often_leaves_and_is_tried_again_later(root: Path) -> None:
    async with running_pool(root, max_restarts=0) as pool:
        await value(pool, "table")
        pool.process("table").kill()
        await until_async(lambda: pool.pool.find("table").resident is None, "the end of the model")
        assert pool.recorder.evictions == [("table", "crashed")]
        with pytest.raises(LoadFailed, match="signal 9") as caught:
            await value(pool, "table")
        await asyncio.sleep(caught.value.retry_after_s + 0.05)
        assert await value(pool, "table") == 30.0


async def test_a_load_that_takes_too_long_is_ended_with_its_process(root: Path) -> None:
    async with running_pool(root, max_load_s=0.05) as pool:
        with pytest.raises(LoadFailed, match=r"not loaded within 0\.05 s"):
            await value(pool, "table")
        await until_async(lambda: not model_processes(), "the end of the process")
        assert pool.pool.loader.used_bytes == 0 and pool.recorder.failures == ["table"]


async def test_what_is_no_model_is_refused_with_the_reason_and_not_tried_all_the_time(root: Path) -> None:
    async with running_pool(root) as pool:
        for _ in range(3):
            with pytest.raises(LoadFailed) as caught:
                await value(pool, "broken")
        assert pool.recorder.failures == ["broken"] and 0 < caught.value.retry_after_s <= 1.0
        shutil.copy(root / "table" / "model.onnx", root / "broken" / "model.onnx")
        await until_async(lambda: pool.pool.find("broken").failure.until_s == 0.0, "the new file")  # type: ignore[union-attr]
        assert await value(pool, "broken") == 30.0 and pool.pool.find("broken").reason == ""


async def test_too_many_requests_and_too_many_loads_are_refused(root: Path) -> None:
    write(root, *({"name": name, "path": name, "max_in_flight": 2} for name in ("table", "a", "b")))
    async with running_pool(root, parallel_loads=1, max_waiting_loads=1) as pool:
        calls = [asyncio.create_task(value(pool, "table")) for _ in range(3)]
        loader = pool.pool.loader
        await until_async(lambda: pool.states()["table"] == "LOADING" and not loader.waiting, "the first load")
        calls.append(asyncio.create_task(value(pool, "a")))
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(value(pool, "b")))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers[:2] == [30.0, 30.0] and isinstance(answers[2], ModelBusy)
        assert answers[3] == 30.0 and isinstance(answers[4], StillLoading)


async def test_clients_that_leave_hold_no_model(root: Path) -> None:
    async with running_pool(root) as pool:
        calls = [asyncio.create_task(value(pool, "table")) for _ in range(10)]
        await asyncio.sleep(0.05)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        slot = pool.pool.find("table")
        assert (slot.in_flight, slot.waiting) == (0, 0)
        assert await value(pool, "table") == 30.0
        assert slot.resident and slot.resident.in_hand == 0


async def test_under_kills_and_unloads_each_answer_is_of_its_own_model(root: Path) -> None:
    """Four models, of which two fit, for 24 clients: each request is answered right or fails, and nothing is left."""
    names = ("table", "a", "b", "tenfold")
    write_factor(root / "tenfold", 100)
    write(root, *({"name": name, "path": name} for name in names))
    chance, answers, errors = random.Random(7), list[bool](), list[Exception]()

    async def call(pool: RunningPool, until_s: float) -> None:
        # A slow machine may load nothing between two kills: then it goes on without them until something answers.
        while time.monotonic() < until_s or not answers:
            name, index = chance.choice(names), chance.randrange(10)
            try:
                answers.append(await value(pool, name, index) == index * (100 if name == "tenfold" else 10))
            except (ModelCrashed, ModelLost, StillLoading, LoadFailed) as error:
                errors.append(error)
                await asyncio.sleep(0.01)

    async with running_pool(root, TWO, load_timeout_s=2.0, max_restarts=1) as pool:
        until_s = time.monotonic() + 5.0
        calls = asyncio.gather(*(call(pool, until_s) for _ in range(24)))
        while time.monotonic() < until_s:
            await asyncio.sleep(0.3)
            for child in chance.sample(found := model_processes(), min(1, len(found))):
                child.kill()
            await pool.pool.unload(pool.pool.versions(chance.choice(names)))
            assert len(model_processes()) <= TWO.max_loaded
        await calls
        assert answers and all(answers)
        assert all((slot.in_flight, slot.waiting) == (0, 0) for slot in pool.pool.slots.values())
    assert model_processes() == []


async def test_changed_files_are_loaded_beside_the_old_ones_without_a_failed_request(root: Path) -> None:
    async with running_pool(root) as pool:
        old, answers = await value(pool, "a"), set[float]()
        shutil.rmtree(root / "a")
        write_factor(root / "a", 100)
        while 300.0 not in answers:
            answers.add(await value(pool, "a"))
        assert answers == {old, 300.0} and pool.recorder.evictions == [("a", "changed")]


async def test_new_files_that_are_no_model_leave_the_old_ones_serving(root: Path) -> None:
    async with running_pool(root) as pool:
        await value(pool, "a")
        (root / "a" / "model.onnx").write_bytes(b"no model")
        await until_async(lambda: pool.recorder.failures == ["a"], "the failed load")
        assert await value(pool, "a") == 30.0
        assert pool.states()["a"] == "READY" and pool.pool.find("a").reason


async def test_the_file_adds_changes_and_removes_models_and_versions(root: Path) -> None:
    write_factor(root / "tenfold", 100)
    async with running_pool(root) as pool:
        await value(pool, "table")
        process = pool.process("table")
        first, second = ({"name": "a", "path": path, "version": path} for path in ("a", "tenfold"))
        write(root, first, second | {"default": True})
        await until_async(lambda: len(pool.pool.slots) == 2 and not process.is_running(), "the new file")
        with pytest.raises(UnknownModel):
            await value(pool, "table")
        assert [await value(pool, "a"), await value(pool, "a", version="a")] == [300.0, 30.0]
        (root / "pool.json").write_text("{")
        await until_async(lambda: pool.pool.file_errors == 1, "the wrong file")
        assert await value(pool, "a") == 300.0


async def test_unload_frees_the_memory_and_the_next_request_loads_again(root: Path) -> None:
    async with running_pool(root) as pool:
        await value(pool, "table")
        process = pool.process("table")
        await pool.pool.unload(pool.pool.versions("table"))
        assert not process.is_running() and pool.pool.loader.used_bytes == 0
        assert await value(pool, "table") == 30.0


async def test_at_the_end_no_process_is_left_and_waiting_requests_end(root: Path) -> None:
    async with running_pool(root) as pool:
        await value(pool, "table")
        process = pool.process("table")
        hanging = asyncio.create_task(pool.infer("loop", request("count", "INT64", [HANGS], "y")))
        loading = asyncio.create_task(value(pool, "b"))
        await until_async(lambda: pool.states()["b"] == "LOADING", "the load")
        pool.pool.fail_waiting("The server is shutting down.")
        with pytest.raises(StillLoading, match="shutting down"):
            await loading
    assert not process.is_running()
    with pytest.raises((ModelLost, ModelCrashed, StillLoading)):
        await hanging


def write_factor(folder: Path, factor: int) -> None:
    """As `table`, with the index times the factor."""
    import numpy
    import onnx
    from onnx import numpy_helper

    path = onnx_models.table(folder)
    model = onnx.load(path)
    numbers = numpy_helper.from_array(numpy.arange(10, dtype="f4") * factor, "numbers")
    model.graph.initializer[0].CopyFrom(numbers)
    path.write_bytes(model.SerializeToString())
