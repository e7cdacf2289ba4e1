"""When the objects of compiled modules go: not before everything that is made of them is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from devcluster import cli
from devcluster.gobuild import all_binaries, drop_build_caches, has_build_caches
from devcluster.pins import CONTROL_PLANE, NODE_MODULES
from devcluster.places import Places, places

TEST_TOOLS = ("control-plane", "helm")  # what `make test` builds first


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = places()
    (found.work / "gobuild").mkdir(parents=True)
    return found


def built(where: Places, *names: str) -> None:
    for name in names:
        where.binary(name).parent.mkdir(parents=True, exist_ok=True)
        where.binary(name).touch()


def test_objects_stay_while_a_node_still_needs_to_be_compiled(here: Places) -> None:
    built(here, *CONTROL_PLANE, "helm")
    assert CliRunner().invoke(cli.main, ["build", *TEST_TOOLS]).exit_code == 0
    assert has_build_caches(here)


def test_they_go_with_the_last_binary(here: Places) -> None:
    built(here, *all_binaries(*NODE_MODULES))
    assert CliRunner().invoke(cli.main, ["build", *TEST_TOOLS]).exit_code == 0
    assert not has_build_caches(here)
    drop_build_caches(here)
