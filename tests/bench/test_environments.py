"""Environments of peers: keyed by their pins, continued where they stopped, refused with a sentence."""

from pathlib import Path

import pytest
from rich.console import Console

from bench.engine.environments import Environment, Unavailable, ensure, llama, transformers, uv, vllm
from devcluster.errors import DevclusterError
from devcluster.steps.schedule import Step

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def environment(made: list[str], *, fails: bool = False) -> Environment:
    def steps(folder: Path) -> list[Step]:
        def second() -> None:
            if fails:
                raise DevclusterError("`cc` failed with status 1:\n    no such header")
            made.append("second")

        def first() -> None:
            made.append("first")
            (folder / "first").touch()

        return [Step("first", (folder / "first").exists, first), Step("second", lambda: False, second)]

    return Environment("x", ("x==1",), 0.001, steps)


def test_environments_lie_apart_by_their_pins(cache: Path) -> None:
    folders = {each().folder for each in (llama, transformers, vllm)}
    assert len(folders) == 3
    assert all(folder.is_relative_to(cache / "slipway" / "bench") for folder in folders)
    assert Environment("x", ("x==1",), 1, lambda _: []).folder != Environment("x", ("x==2",), 1, lambda _: []).folder


def test_what_is_whole_is_not_made_again() -> None:
    made: list[str] = []
    assert ensure(environment(made), QUIET) == ensure(environment(made), QUIET)
    assert made == ["first", "second"]


def test_a_failure_is_one_sentence_and_the_next_try_goes_on_from_there() -> None:
    made: list[str] = []
    with pytest.raises(Unavailable, match="`cc` failed with status 1: … no such header"):
        ensure(environment(made, fails=True), QUIET)
    ensure(environment(made), QUIET)
    assert made == ["first", "second"]


def test_an_environment_that_does_not_fit_on_the_disk_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="needs 1000000 GB"):
        ensure(Environment("x", ("x==1",), 1e6, lambda _: []), QUIET)


def test_uv_is_the_one_that_is_named() -> None:
    assert uv({"UV": "/somewhere/uv"}) == "/somewhere/uv"
