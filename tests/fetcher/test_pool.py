"""The fetcher beside a pool, with real fetchers and a real server."""

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from slipway_fetcher import pool as pool_fetcher
from slipway_fetcher.pool.follow import FetchRules, PoolFolder
from slipway_process.model_folder.catalog import FETCH_ERROR
from slipway_process.model_folder.checkpoint import MARKER
from testkit.until import until, until_async
from tests.predict.pool.running import write
from tests.server.process import ServerProcess, post
from tests.support.tasks import Started, fail, reasons

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
IRIS = Path(__file__).parents[2] / "examples" / "models"


def entry(path: str, uri: str, **more: Any) -> dict[str, Any]:
    return {"name": "iris", "path": path, "version": path, "source": {"uri": uri}, **more}


async def settled(folder: PoolFolder) -> None:
    """One look, and what it began."""
    await folder.look()
    running = [one.running for one in folder._attempts.values() if one.running]
    await asyncio.gather(*running)


def folder_of(root: Path, **more: Any) -> PoolFolder:
    (root / "models").mkdir(exist_ok=True)
    max_bytes = more.pop("max_bytes", 1 << 30)
    return PoolFolder(FetchRules(root / "pool.json", root / "models", max_bytes, 60.0), **more)


async def test_files_of_each_entry_come_and_those_of_one_that_left_go(tmp_path: Path) -> None:
    onnx, skops = f"file://{IRIS}/iris-onnx", f"file://{IRIS}/iris-skops"
    write(tmp_path, entry("a", onnx, default=True), entry("b", skops))
    folder = folder_of(tmp_path, remove_after_s=0.0)
    await settled(folder)
    for name, uri in (("a", onnx), ("b", skops)):
        assert json.loads((tmp_path / "models" / name / MARKER).read_text())["uri"] == uri
        assert not (tmp_path / "models" / name / FETCH_ERROR).exists()
    write(tmp_path, entry("b", skops))
    await settled(folder)
    assert sorted(one.name for one in (tmp_path / "models").iterdir()) == ["b"]


async def test_an_entry_that_left_keeps_its_files_while_requests_may_run(tmp_path: Path) -> None:
    write(tmp_path, entry("a", f"file://{IRIS}/iris-onnx"))
    folder = folder_of(tmp_path, remove_after_s=60.0)
    await settled(folder)
    write(tmp_path)
    await settled(folder)
    assert (tmp_path / "models" / "a" / MARKER).is_file()


async def test_why_files_cannot_come_is_written_beside_them_and_other_entries_still_come(tmp_path: Path) -> None:
    absent = f"file://{tmp_path}/absent"
    write(tmp_path, entry("a", absent, default=True), entry("b", f"file://{IRIS}/iris-onnx"))
    folder = folder_of(tmp_path)
    await settled(folder)
    assert "absent" in (tmp_path / "models" / "a" / FETCH_ERROR).read_text()
    assert not (tmp_path / "models" / "a" / MARKER).exists()
    assert (tmp_path / "models" / "b" / MARKER).is_file()
    attempts = folder._attempts["a"]
    await settled(folder)
    assert (attempts.count, attempts.running) == (1, None), "the next attempt waits"


async def test_without_room_nothing_is_downloaded(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, max_bytes=10)
    (tmp_path / "models" / "old").mkdir()
    (tmp_path / "models" / "old" / "weights").write_bytes(b"0" * 10)
    write(tmp_path, entry("a", f"file://{IRIS}/iris-onnx"))
    await settled(folder)
    assert "no room" in (tmp_path / "models" / "a" / FETCH_ERROR).read_text()


async def test_a_wrong_file_removes_nothing(tmp_path: Path) -> None:
    write(tmp_path, entry("a", f"file://{IRIS}/iris-onnx"))
    folder = folder_of(tmp_path, remove_after_s=0.0)
    await settled(folder)
    (tmp_path / "pool.json").write_text("{")
    await settled(folder)
    assert (tmp_path / "models" / "a" / MARKER).is_file()


def test_a_path_chooses_one_of_two_revisions_and_a_late_download_is_loaded(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    first = entry("r1", "file:///ignored", default=True, shown_version="blue")
    write(tmp_path, first, entry("r2", "file:///ignored", shown_version="blue"))

    def bring(name: str) -> None:
        shutil.copytree(IRIS / "iris-onnx", models / name)
        (models / name / MARKER).write_text(json.dumps({"path": str(models / name)}))

    bring("r1")
    flags = ("--task", "predict", "--pool-config", str(tmp_path / "pool.json"))
    with ServerProcess(models, *flags) as process:
        server = process.wait_ready()
        body = {"inputs": [{"features": [5.1, 3.5, 1.4, 0.2]}]}

        def answer(revision: str, **params: str) -> tuple[int, Any]:
            url = f"{server.url}/revisions/{revision}/api/v1/models/iris/predict"
            status, _, found = post(url, body | ({"params": params} if params else {}))
            return status, found

        assert answer("r1")[1]["model_version"] == "blue"
        status, refused = answer("r2")
        assert (status, refused["error"]["code"]) == (503, "model_unavailable")
        assert "are not here yet" in refused["error"]["message"]
        bring("r2")
        until(lambda: answer("r2")[0] == 200, "the second revision answers")
        assert answer("r2", version="blue")[0] == answer("r2", version="r2")[0] == 200
        assert answer("r2", version="r1")[0] == 404
        status, refused = answer("r3")
        assert (status, refused["error"]["code"]) == (503, "loading"), "a gateway sends it to another pod"
        assert post(f"{server.url}/api/v1/models/iris/predict", body)[2]["model_version"] == "blue"
        infer = f"{server.url}/revisions/r1/v2/models/iris/infer"
        assert post(infer, b"{", {"Content-Encoding": "gzip"})[0] == 400, "it may be compressed, and this is not"
        index = json.loads(post(f"{server.url}/v2/repository/index", {})[2])
        assert {(one["version"], one["revision"], one["state"]) for one in index} == {
            ("blue", "r1", "READY"), ("blue", "r2", "READY"),
        }  # fmt: skip


async def test_the_task_that_follows_the_file_is_at_work_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, entry("a", f"file://{IRIS}/iris-onnx"))
    Started.replace(monkeypatch, pool_fetcher)
    looks = fail(monkeypatch, PoolFolder, "look")
    running = asyncio.create_task(pool_fetcher.run(folder_of(tmp_path)))
    await until_async((tmp_path / "models" / "a" / MARKER).is_file, "its files come")
    assert looks[:2] == ["failed", "worked"] and reasons(caplog) == {"pool-folder"}
    assert Started.made[0].restarts == ["pool-folder"]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 30) == 0


async def test_where_that_does_not_help_the_fetcher_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, PoolFolder, "look", 10**9)
    assert await asyncio.wait_for(pool_fetcher.run(folder_of(tmp_path)), 60) == 1


async def test_an_entry_at_which_a_bug_is_met_waits_and_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was tried again each second, and nothing had the reason."""
    write(tmp_path, entry("a", f"file://{IRIS}/iris-onnx", default=True), entry("b", f"file://{IRIS}/iris-skops"))
    fail(monkeypatch, PoolFolder, "_fetch")
    folder = folder_of(tmp_path)
    await settled(folder)
    assert [(tmp_path / "models" / name / MARKER).is_file() for name in "ab"] == [False, True]
    assert "a bug" in caplog.text
    await folder.look()
    assert folder._attempts["a"].running is None
