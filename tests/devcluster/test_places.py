"""Folders, atomic writes, the lock."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.places import Places, appears_whole, demand_space, exclusive, places, write_whole


def test_folders_follow_the_environment() -> None:
    ordinary = places({"HOME": "/home/x"})
    assert ordinary.cache == Path("/home/x/.cache/slipway")
    assert ordinary.kubeconfig == Path("/home/x/.cache/slipway/state/slipway/kubeconfig")
    named = places({"HOME": "/h", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s", "SLIPWAY_CLUSTER": "two"})
    assert (named.cache, named.state) == (Path("/c/slipway"), Path("/s/slipway/two"))
    assert ordinary.lent_images is None
    assert places({"HOME": "/h", "SLIPWAY_LENT_IMAGES": "/l"}).lent_images == Path("/l")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with pytest.raises(RuntimeError), appears_whole(target) as path:
        path.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_write_replaces_the_old_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "a/file", "old")
    write_whole(tmp_path / "a/file", "new")
    assert (tmp_path / "a/file").read_text() == "new"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


def _append_slowly(where: Places) -> None:
    with exclusive(where):
        log = where.cache / "log"
        before = log.read_text() if log.exists() else ""
        log.write_text(before + "in ")
        log.write_text(log.read_text() + "out ")


def test_two_runs_take_turns(tmp_path: Path) -> None:
    where = Places(tmp_path, tmp_path / "state", "x")
    spawn = multiprocessing.get_context("spawn")
    runs = [spawn.Process(target=_append_slowly, args=(where,)) for _ in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(30)
    assert (tmp_path / "log").read_text() == "in out " * 3


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "torch/.abc.x1").mkdir(parents=True)
    (tmp_path / "torch/abc").mkdir()
    with exclusive(Places(tmp_path, tmp_path / "state", "x")):
        pass
    assert [path.name for path in (tmp_path / "torch").iterdir()] == ["abc"]


def test_too_little_space_is_reported_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="XDG_CACHE_HOME"):
        demand_space(tmp_path / "not/yet", 1e9, "Building")
