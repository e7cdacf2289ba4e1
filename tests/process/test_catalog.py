"""The file of a pool: every mistake is named by its field."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipway_process.model_folder.catalog import MAX_MODELS, CatalogError, PoolEntry, fingerprint, read_catalog
from slipway_process.model_folder.checkpoint import CheckpointError

IRIS = {"name": "iris", "path": "iris"}


def read(folder: Path, *models: Any) -> Any:
    file = folder / "pool.json"
    file.write_text(json.dumps({"models": models}))
    return read_catalog(file)


def test_versions_of_a_name_are_entries_and_one_is_the_default(tmp_path: Path) -> None:
    first = IRIS | {"version": "1"}
    catalog = read(tmp_path, first, IRIS | {"version": "2", "default": True}, {"name": "team/other", "path": "o"})
    assert set(catalog.entries) == {("iris", "1"), ("iris", "2"), ("team/other", "unversioned")}
    assert catalog.defaults == {"iris": "2", "team/other": "unversioned"}


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([IRIS, IRIS], "models[1]: iris with the version unversioned is there twice"),
        ([IRIS | {"version": "1"}, IRIS | {"version": "2"}], "iris has 2 versions: write default: true"),
        ([IRIS | {"path": "../secret"}], "models[0].path: '../secret' is not below"),
        ([IRIS | {"path": "/etc"}], "models[0].path: '/etc' is not below"),
        ([IRIS | {"path": "."}], "models[0].path: '.' is not below"),
        ([IRIS | {"name": "../x"}], "$.models[0].name"),
        ([IRIS | {"version": "a/b"}], "$.models[0].version"),
        ([IRIS | {"pinned": "yes"}], "$.models[0].pinned"),
        ([IRIS | {"max_in_flight": 0}], "$.models[0].max_in_flight"),
        ([IRIS | {"max_memory_bytes": -1}], "$.models[0].max_memory_bytes"),
        ([IRIS | {"threads": 10**30}], "$.models[0].threads"),
        ([IRIS | {"format": "pickle"}], "$.models[0].format"),
        ([IRIS | {"replicas": 2}], "`replicas`"),
        ([{"name": "iris"}], "`path`"),
        ([None], "$.models[0]"),
        ([{"name": f"m{index}", "path": "p"} for index in range(MAX_MODELS + 1)], "$.models"),
    ],
)
def test_a_wrong_file_is_refused_with_the_name_of_the_field(tmp_path: Path, models: list[Any], words: str) -> None:
    with pytest.raises(CatalogError) as caught:
        read(tmp_path, *models)
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"models": null}', b"[" * 100_000])
def test_what_is_no_file_of_a_pool_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pool.json").write_bytes(content)
    with pytest.raises(CatalogError, match="The pool's file"):
        read_catalog(tmp_path / "pool.json")


def test_a_file_that_is_not_there_or_endless_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read: No such file"):
        read_catalog(tmp_path / "pool.json")
    with pytest.raises(CatalogError, match="more than 1048576 bytes"):
        read_catalog(Path("/dev/zero"))


def test_a_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    entry = PoolEntry(name="m", path="m")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.onnx").write_bytes(b"one")
    first = fingerprint(tmp_path, entry)
    assert first == fingerprint(tmp_path, entry) and first.size_bytes == 3
    (tmp_path / "m" / "model.onnx").write_bytes(b"four")
    assert fingerprint(tmp_path, entry) != first


def test_a_folder_that_leads_out_of_the_root_or_is_not_there_has_none(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.mkdir()
    (root / "m").symlink_to(secret)
    with pytest.raises(CheckpointError, match="a link that leads out of the pool's folder"):
        fingerprint(root, PoolEntry(name="m", path="m"))
    with pytest.raises(CheckpointError, match="There is no folder"):
        fingerprint(root, PoolEntry(name="m", path="other"))
