"""The loader beside a real engine: what it fetches, loads, unloads and reports, whatever ends meanwhile."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway_contracts.adapters import lora_name
from slipway_process.model_folder import checkpoint
from slipway_server.models.adapters.targets import targets_of
from slipway_server.models.families import shape_of
from testkit.until import until
from tests.conftest import MODELS
from tests.fetcher.adapters.running import LoaderProcess, entry, write_file
from tests.server.adapter_folders import tensors_of, write
from tests.server.process import ServerProcess, get, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TARGETS = targets_of(shape_of(checkpoint.read_config(MODELS / "tiny-v1"), 256))


def engine_of(dest: Path, *flags: str) -> ServerProcess:
    dest.mkdir(exist_ok=True)
    return ServerProcess(
        MODELS / "tiny-v1", "--max-loras", "2", "--lora-root", str(dest), "--max-lora-rank", "8", *flags
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for number, name in enumerate(("one", "two", "three")):
        write(folder / name, tensors_of(TARGETS, seed=number), base_model_name_or_path="slipway/tiny-v1")
    write(folder / "rank", tensors_of(TARGETS, rank=16), r=16)
    pickled = write(folder / "pickled", tensors_of(TARGETS))
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    return folder


@pytest.fixture
def world(tmp_path: Path, sources: Path) -> Iterator[tuple[Path, Path, ServerProcess, Path]]:
    """The file, the folder, the engine, and the sources."""
    dest = tmp_path / "adapters"
    with engine_of(dest) as engine:
        yield tmp_path / "adapters.json", dest, engine.wait_ready(), sources


def loaded(engine: ServerProcess) -> set[str]:
    cards: list[dict[str, Any]] = json.loads(get(engine.probe_url + "/v1/models")[1])["data"]
    return {card["id"] for card in cards if card.get("parent")}


def text_of(engine: ServerProcess, model: str) -> str:
    body = {"model": model, "prompt": "In the beginning", "max_tokens": 12, "temperature": 0}
    status, _, answer = post(engine.url + "/v1/completions", body)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def test_the_engine_has_what_the_file_lists_and_a_loader_that_was_killed_goes_on(
    world: tuple[Path, Path, ServerProcess, Path],
) -> None:
    file, dest, engine, sources = world
    write_file(file, entry("support", "r1", sources / "one"), entry("support", "r2", sources / "two"))
    with LoaderProcess(file, dest, engine.probe_url) as loader:
        until(lambda: get(loader.url + "/ready")[0] == 200, "the loader")
        assert loaded(engine) == {"support@r1", "support@r2"}
        assert set(loader.states().values()) == {"loaded"}
        digests = {state.revision: state.digest for state in loader.report().adapters}
        assert len(set(digests.values())) == 2 and digests["r1"].startswith("sha256:")
        assert text_of(engine, lora_name("support", "r1")) != text_of(engine, lora_name("support", "r2"))
        assert get(loader.url + "/live")[0] == 200 and get(loader.url + "/other")[0] == 404
        write_file(file, entry("support", "r2", sources / "two", digest=digests["r2"]))
        loader.wait_for(support__r2="loaded")
        until(lambda: loaded(engine) == {"support@r2"}, "the unloading")
        until(lambda: len(list(dest.iterdir())) == 1, "the deletion of its files")
    write_file(file, entry("support", "r3", sources / "three"), entry("support", "r2", sources / "two"))
    with LoaderProcess(file, dest, engine.probe_url) as loader:
        loader.wait_for(support__r2="loaded", support__r3="loaded")
        loads = [line for line in get(loader.url + "/metrics")[1].decode().splitlines() if "loads_total{" in line]
        assert 'slipway_adapter_loader_loads_total{result="ok"} 1' in loads, "what was loaded before stayed"


def test_what_cannot_be_loaded_has_failed_with_a_sentence_and_others_are_loaded(
    world: tuple[Path, Path, ServerProcess, Path],
) -> None:
    file, dest, engine, sources = world
    write_file(
        file,
        entry("good", "r1", sources / "one"),
        entry("rank", "r1", sources / "rank"),
        entry("pickled", "r1", sources / "pickled"),
        entry("pinned", "r1", sources / "two", digest="sha256:" + "0" * 64),
        entry("scheme", "r1", "ftp://example.com/adapter"),
    )
    with LoaderProcess(file, dest, engine.probe_url) as loader:
        states = {"rank__r1": "failed", "pickled__r1": "failed", "pinned__r1": "failed", "scheme__r1": "waiting"}
        loader.wait_for(good__r1="loaded", **states)
        reasons = {state.name: state.reason for state in loader.report().adapters}
        assert "out of range" in reasons["rank"] and "pickled weights" in reasons["pickled"]
        assert "pinned to sha256:000" in reasons["pinned"] and "not understood" in reasons["scheme"]
        assert get(loader.url + "/ready")[0] == 503, "what may come later holds the pod for a while"
        write_file(file, entry("good", "r1", sources / "one"))
        until(lambda: get(loader.url + "/ready")[0] == 200, "the rest")
        file.write_text('{"adapters": [{"name": 1}]}')
        until(lambda: "file_wrong 1" in get(loader.url + "/metrics")[1].decode(), "the wrong file")
        assert loader.states() == {"good@r1": "loaded"} and loaded(engine) == {"good@r1"}
        assert get(loader.url + "/ready")[0] == 200


def test_after_a_restart_of_the_engine_all_are_loaded_again(tmp_path: Path, sources: Path) -> None:
    file, dest = tmp_path / "adapters.json", tmp_path / "adapters"
    with engine_of(dest) as first:
        port, probe = (first.wait_ready().url.rpartition(":")[2], first.probe_url.rpartition(":")[2])
        write_file(file, entry("support", "r1", sources / "one"))
        with LoaderProcess(file, dest, first.probe_url) as loader:
            loader.wait_for(support__r1="loaded")
            first.process.kill()
            loader.wait_for(support__r1="waiting")
            assert "cannot be reached" in loader.report().adapters[0].reason
            with engine_of(dest, "--port", port, "--probe-port", probe) as second:
                second.wait_ready()
                loader.wait_for(support__r1="loaded")
                assert loaded(second) == {"support@r1"}


def test_files_that_are_gone_are_fetched_again(world: tuple[Path, Path, ServerProcess, Path]) -> None:
    file, dest, engine, sources = world
    write_file(file, entry("support", "r1", sources / "one"))
    with LoaderProcess(file, dest, engine.probe_url) as loader:
        loader.wait_for(support__r1="loaded")
        (folder,) = dest.iterdir()
        before = text_of(engine, "support@r1")
        shutil.rmtree(folder)
        until(lambda: (folder / "model" / "adapter_model.safetensors").is_file(), "the files")
        time.sleep(1.5)
        assert loader.states() == {"support@r1": "loaded"} and text_of(engine, "support@r1") == before


def test_other_files_of_one_revision_are_loaded_in_place_of_the_former(
    world: tuple[Path, Path, ServerProcess, Path], tmp_path: Path
) -> None:
    file, dest, engine, sources = world
    moving = shutil.copytree(sources / "one", tmp_path / "moving")
    write_file(file, entry("support", "r1", moving))
    with LoaderProcess(file, dest, engine.probe_url) as loader:
        loader.wait_for(support__r1="loaded")
        before, digest = text_of(engine, "support@r1"), loader.report().adapters[0].digest
        shutil.rmtree(moving)
        shutil.copytree(sources / "two", moving)
        (folder,) = dest.iterdir()
        shutil.rmtree(folder)
        until(lambda: loader.report().adapters[0].digest not in ("", digest), "the other files")
        assert text_of(engine, "support@r1") != before


def test_the_digest_that_is_recorded_holds_for_pods_that_loaded_other_files_and_changes_nothing_for_the_others(
    world: tuple[Path, Path, ServerProcess, Path], tmp_path: Path
) -> None:
    file, dest, engine, sources = world
    moving = shutil.copytree(sources / "one", tmp_path / "moving")
    write_file(file, entry("same", "r1", sources / "one"), entry("moved", "r1", moving))
    with LoaderProcess(file, dest, engine.probe_url) as loader:
        loader.wait_for(same__r1="loaded", moved__r1="loaded")
        before = {state.name: state.digest for state in loader.report().adapters}
        other = text_of(engine, "moved@r1")
        same = entry("same", "r1", sources / "one", digest=before["same"])
        write_file(file, same, entry("moved", "r1", moving, digest="sha256:" + "0" * 64))
        loader.wait_for(same__r1="loaded", moved__r1="failed")
        shutil.rmtree(moving)
        shutil.copytree(sources / "two", moving)
        write_file(file, entry("two", "r1", sources / "two"), same)
        loader.wait_for(same__r1="loaded", two__r1="loaded")
        digest = next(state.digest for state in loader.report().adapters if state.name == "two")
        write_file(file, same, entry("moved", "r1", moving, digest=digest))
        loader.wait_for(same__r1="loaded", moved__r1="loaded")
        assert text_of(engine, "moved@r1") != other
        loads = get(loader.url + "/metrics")[1].decode()
        assert 'loads_total{result="ok"} 4' in loads, "the adapter whose digest was recorded was loaded once"
