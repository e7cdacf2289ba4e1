"""When the objects of compiled modules go: not before everything that is made of them is there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from devcluster import cli
from devcluster.engine.engine import Engine
from devcluster.errors import DevclusterError
from devcluster.gobuild import (
    all_binaries,
    build_steps,
    drop_build_caches,
    garbage_collection,
    go_command,
    has_build_caches,
    invocations,
)
from devcluster.images import nodeimage
from devcluster.pins import CONTROL_PLANE, MODULES, NODE_MODULES
from devcluster.places import Places, places
from devcluster.steps.schedule import makespan, startable

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


def test_all_of_a_module_is_compiled_at_once_but_for_what_go_refuses() -> None:
    assert invocations(MODULES["kube"], ["etcd", "local-path-provisioner", "kubelet"]) == [
        ["etcd", "kubelet"],
        ["local-path-provisioner"],
    ]
    assert invocations(MODULES["containerd"], ["ctr"]) == [["ctr"]]
    assert invocations(MODULES["kube"], []) == []


def test_one_step_for_each_module_done_when_all_its_binaries_are_there(here: Places) -> None:
    kube, containerd = build_steps(here, ("etcd", "kubectl", "ctr"))
    assert (kube.title, containerd.title) == ("compile kube", "compile containerd")
    built(here, "etcd")
    assert not kube.done()
    built(here, "kubectl")
    assert kube.done() and not containerd.done()


def test_what_no_node_needs_is_compiled_while_it_starts(here: Places) -> None:
    steps = build_steps(here, all_binaries(*NODE_MODULES))
    titles = [step.title for step in steps]
    assert titles == ["compile kube", "compile containerd", "compile helm", "compile metrics-server"]
    assert titles[:2] == list(nodeimage.COMPILED) and {step.lane for step in steps} == {"compile"}


@pytest.mark.parametrize(("version", "compiled"), [("v4.3.1", False), ("v3.1.0", True)])
def test_a_tool_on_path_that_is_new_enough_is_not_compiled(
    here: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, compiled: bool
) -> None:
    helm = tmp_path / "tools" / "helm"
    helm.parent.mkdir()
    helm.write_text(f"#!/bin/sh\necho {version}\n")
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helm.parent}:/usr/bin:/bin")
    built(here, *(name for name in all_binaries(*NODE_MODULES) if name != "helm"))
    assert all(step.done() for step in nodeimage.binary_steps(here)) is not compiled


def test_without_go_on_path_the_uv_of_the_cache_installs_it(
    here: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = here.cache / "uv-1.2.3" / "bin" / "uv"  # what `make` installs where there is none; it is not on PATH
    uv.parent.mkdir(parents=True)
    uv.write_text('#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\nmkdir -p $2/go/bin && touch $2/go/bin/go\n')
    uv.chmod(0o755)
    (tmp_path / "bin").mkdir()
    for name in ("sh", "mkdir", "touch"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert go_command(here).stat().st_mode & 0o111
    shutil.rmtree(here.work / "go")
    uv.write_text("#!/bin/sh\necho no such index >&2; exit 2\n")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(DevclusterError, match=r"(?s)Go 1\.\d+\.\d+ or newer is needed.*no such index"):
        go_command(here)


def test_compilers_sweep_less_often_where_there_is_memory() -> None:
    assert garbage_collection(4_000_000_000) == {}
    settings = garbage_collection(24_000_000_000)
    assert int(settings["GOGC"]) > 100 and int(settings["GOMEMLIMIT"]) == 4_000_000_000


class Empty(Engine):
    """An engine that has no image."""

    def has_image(self, reference: str) -> bool:
        return False


def test_from_nothing_packages_come_while_go_compiles_and_the_last_programs_while_the_node_starts(here: Places) -> None:
    steps = nodeimage.steps(here, Empty("podman", own_store=True))
    first = {step.title for step in startable(steps, {"install packages"}, set())}
    assert first == {"compile kube", "base file system"}
    finished = {"install packages", "base file system", "import the base", *nodeimage.COMPILED}
    assert {step.title for step in startable(steps, finished, {"compile helm"})} == {"kind's own files"}
    finished |= {"kind's own files", "component images", "compile helm", "compile metrics-server"}
    assert {step.title for step in startable(steps, finished, set())} == {"node image", "remove build caches"}
    makespan(steps, {step.title: 1 for step in steps})  # none waits for itself
