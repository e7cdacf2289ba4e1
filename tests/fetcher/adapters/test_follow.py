"""What the loader reports while the file changes and the engine is busy; an engine that lists what the test says."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Literal

import pytest

from slipway_fetcher import marker
from slipway_fetcher.adapters import follow
from slipway_fetcher.adapters.engine import EngineAdapter, EngineApi, EngineBusyError, EngineDownError
from slipway_fetcher.adapters.file import folder_of, read_file
from slipway_fetcher.adapters.follow import HOLD_ATTEMPTS, AdapterLoader, LoaderRules
from slipway_fetcher.adapters.kept_folders import KeptFolders
from slipway_process.backoff import Backoff
from tests.fetcher.adapters.running import entry, write_file

DIGEST = "sha256:" + "0a" * 32


class BusyEngine(EngineApi):
    listed: dict[str, EngineAdapter] | None = None

    def adapters(self) -> dict[str, EngineAdapter]:
        if self.listed is None:
            raise EngineBusyError("busy")
        return self.listed


def test_an_adapter_whose_digest_is_recorded_stays_loaded_while_the_engine_is_busy(tmp_path: Path) -> None:
    file, dest = tmp_path / "adapters.json", tmp_path / "adapters"
    write_file(file, entry("support", "r1", "hf://org/a"))
    folder = dest / folder_of(read_file(file)[0])
    (folder / "model").mkdir(parents=True)
    marker.write(folder, marker.Marker("hf://org/a", "", str(folder / "model"), DIGEST))
    engine = BusyEngine("http://127.0.0.1:1", "slipway")
    engine.listed = {"support@r1": EngineAdapter("support@r1", "base", str(folder / "model"))}
    loader = AdapterLoader(LoaderRules(file, dest, 1 << 20, 10.0), engine)
    asyncio.run(loader.look())
    assert [state.state for state in loader.report.adapters] == ["loaded"]
    engine.listed = None
    write_file(file, entry("support", "r1", "hf://org/a", digest=DIGEST))
    asyncio.run(loader.look())
    assert [(state.state, state.digest) for state in loader.report.adapters] == [("loaded", DIGEST)]


@pytest.mark.parametrize(
    ("uri", "endpoint", "seen"),
    [
        ("az://adapters/a", "https://collector.example", ""),
        ("az://adapters/a", "https://core.windows.net.example", ""),
        ("az://adapters/a", "http://account.blob.core.windows.net", ""),
        ("az://adapters/a", "https://account.blob.core.windows.net", "secret"),
        ("az://adapters/a", "", "secret"),
    ],
)
def test_an_endpoint_that_an_adapter_names_gets_no_credentials_that_others_could_use(
    uri: str, endpoint: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "secret")
    program = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(os.environ.get('AZURE_STORAGE_SAS_TOKEN', ''))"
    file, support = tmp_path / "adapters.json", entry("support", "r1", uri)
    support["source"]["endpoint"] = endpoint
    write_file(file, support)
    engine = BusyEngine("http://127.0.0.1:1", "slipway")
    loader = AdapterLoader(
        LoaderRules(file, tmp_path / "adapters", 1 << 20, 10.0), engine, (sys.executable, "-c", program)
    )

    async def fetch() -> None:
        await loader.look()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))

    asyncio.run(fetch())
    assert (tmp_path / "seen").read_text() == seen


@pytest.mark.parametrize(("code", "attempts"), [(1, HOLD_ATTEMPTS), (65, 1)])
def test_a_pod_starts_while_the_source_of_one_adapter_is_away(
    code: int, attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """65: no attempt would succeed, so one is enough."""
    monkeypatch.setattr(follow, "FETCHES", Backoff(0.001, 0.001))
    file, dest = tmp_path / "adapters.json", tmp_path / "adapters"
    write_file(file, entry("support", "r1", "hf://org/a"))
    dest.mkdir()
    engine = BusyEngine("http://127.0.0.1:1", "slipway")
    engine.listed = {}
    loader = AdapterLoader(LoaderRules(file, dest, 1 << 20, 30.0), engine, (sys.executable, "-c", f"exit({code})"))

    async def fetched(times: int) -> None:
        while loader.counts.fetches["failed"] < times:
            await loader.look()
            await asyncio.gather(*(held.running for held in loader._held.values() if held.running))

    async def attempted() -> None:
        for times in range(1, attempts + 1):
            await fetched(times)
            assert not loader.ready, "the look before this attempt ended did not know"
        await loader.look()

    asyncio.run(attempted())
    assert loader.ready


class ObedientEngine(EngineApi):
    """Loads whatever it is given; `paths`: by which it was given each, in order."""

    def __init__(self, engine: Literal["slipway", "vllm"]) -> None:
        super().__init__("http://127.0.0.1:1", engine)
        self.listed, self.paths = dict[str, EngineAdapter](), list[str]()
        self.is_down = False

    def adapters(self) -> dict[str, EngineAdapter]:
        if self.is_down:
            raise EngineDownError("The engine cannot be reached.")
        return dict(self.listed)

    def load(self, name: str, path: str) -> None:
        self.paths.append(path)
        self.listed[name] = EngineAdapter(name, "base", path)

    def unload(self, name: str) -> None:
        self.listed.pop(name, None)


class Folders:
    """A loader and its folder, whose one adapter has been fetched."""

    def __init__(self, root: Path, engine: ObedientEngine) -> None:
        self.engine, self.file, self.dest = engine, root / "adapters.json", root / "adapters"
        self.lists(True)
        self.folder = self.dest / folder_of(read_file(self.file)[0])
        self.holds(DIGEST)
        self.loader = AdapterLoader(LoaderRules(self.file, self.dest, 1 << 20, 10.0), engine, ("false",))

    def lists(self, listed: bool) -> None:
        write_file(self.file, *([entry("support", "r1", "hf://org/a")] if listed else []))

    def holds(self, digest: str) -> None:
        (self.folder / "model").mkdir(parents=True, exist_ok=True)
        marker.write(self.folder, marker.Marker("hf://org/a", "", str(self.folder / "model"), digest))

    def look(self) -> None:
        """Until nothing more is due."""

        async def looks() -> None:
            for _ in range(3):
                await self.loader.look()
                tasks = [held.running for held in self.loader._held.values() if held.running]
                await asyncio.gather(*tasks, *self.loader._leaving.values())

        asyncio.run(looks())


def test_vllm_gets_other_files_by_another_path(tmp_path: Path) -> None:
    """It would take cached prompts of the former files for those of the new ones."""
    world = Folders(tmp_path, ObedientEngine("vllm"))
    world.look()
    world.holds("sha256:" + "0b" * 32)
    world.look()
    former, now = world.engine.paths
    assert former != now and Path(now).resolve() == world.folder / "model"
    assert [state.state for state in world.loader.report.adapters] == ["loaded"]


def test_files_that_are_there_again_have_the_path_that_vllm_knows(tmp_path: Path) -> None:
    world = Folders(tmp_path, ObedientEngine("vllm"))
    world.look()
    shutil.rmtree(world.folder)
    world.holds(DIGEST)
    world.look()
    [path] = world.engine.paths
    assert Path(path).is_dir()


def test_files_stay_while_requests_may_read_them_at_vllm(tmp_path: Path) -> None:
    world = Folders(tmp_path, ObedientEngine("vllm"))
    world.look()
    world.lists(False)
    world.look()
    assert not world.engine.listed and world.folder.is_dir()
    world.engine.is_down = True
    world.look()
    assert world.folder.is_dir(), "nothing is deleted while it is unknown what an engine has"
    world.engine.is_down = False
    world.look()
    assert not world.folder.is_dir(), "an engine that ended has no requests"


def test_files_that_an_earlier_loader_left_stay_at_vllm(tmp_path: Path) -> None:
    world = Folders(tmp_path, ObedientEngine("vllm"))
    world.lists(False)
    world.look()
    assert world.folder.is_dir()


def test_files_go_at_once_where_the_engine_ends_requests_first(tmp_path: Path) -> None:
    world = Folders(tmp_path, ObedientEngine("slipway"))
    world.look()
    world.lists(False)
    world.look()
    assert not world.folder.is_dir()


def test_folders_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("slipway_fetcher.adapters.kept_folders.time.monotonic", lambda: now[0])
    kept = KeptFolders(60.0)
    kept.add("a")
    now[0] += 59
    assert "a" in kept and "b" not in kept
    now[0] += 2
    assert "a" not in kept
