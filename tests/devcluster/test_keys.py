"""Content keys and versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devcluster.keys import key_of, key_of_files, module_key, new_enough, version_in
from devcluster.pins import CONTROL_PLANE, MODULES, module_of
from devcluster.places import module_files


def test_parts_do_not_run_into_each_other() -> None:
    assert key_of(["ab", "c"]) != key_of(["a", "bc"]) != key_of(["abc"])


def test_order_of_files_does_not_matter() -> None:
    assert key_of_files({"a": b"1", "b": b"2"}) == key_of_files({"b": b"2", "a": b"1"})


def test_every_part_of_a_module_changes_its_key() -> None:
    module, files = MODULES["containerd"], {"go.mod": b"x"}
    keys = {
        module_key(module, files, "x86_64"),
        module_key(module, files, "aarch64"),
        module_key(module, {"go.mod": b"y"}, "x86_64"),
        module_key(replace(module, tags=()), files, "x86_64"),
        module_key(replace(module, variables=(("a", "b"),)), files, "x86_64"),
        module_key(replace(module, binaries=module.binaries[:1]), files, "x86_64"),
    }
    assert len(keys) == 6


@pytest.mark.parametrize("module", MODULES.values(), ids=lambda module: module.name)
def test_every_module_is_locked(module: object) -> None:
    files = module_files(module)  # type: ignore[arg-type]
    assert {"go.mod", "go.sum"} <= set(files)


def test_every_binary_has_one_home() -> None:
    names = [name for module in MODULES.values() for name, _ in module.binaries]
    assert len(names) == len(set(names))
    assert {module_of(name).name for name in CONTROL_PLANE} == {"kube"}


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("go1.26.8", (1, 26, 8)),
        ("go version go1.27 linux/amd64", (1, 27, 0)),
        ("Client Version: v1.36.3\nKustomize Version: v5.7.1", (1, 36, 3)),
        ('Client Version: version.Info{Major:"1", Minor:"20", GitVersion:"v1.20.2"}', (1, 20, 2)),
        ("kind v0.33.0 go1.26.8 linux/amd64", (0, 33, 0)),
        ("v4.3.1+g1234", (4, 3, 1)),
        ("no version here", ()),
    ],
)
def test_version_in_a_programs_answer(answer: str, version: tuple[int, ...]) -> None:
    assert version_in(answer) == version


def test_new_enough() -> None:
    assert new_enough("go1.26.0", "1.26.0")
    assert new_enough("v1.100.0", "1.34.0")
    assert not new_enough("v1.20.2", "1.34.0")
    assert not new_enough("", "1.0")
