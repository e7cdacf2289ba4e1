"""Models for other engines than slipway-server: other formats, and a link that names the folder."""

import os
import shutil
from pathlib import Path

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher import folder
from slipway_fetcher.folder import ANY_ENGINE, UnusableError
from tests.fetcher.site import LIMIT, run


def fetch(claim: Path, name: str, dest: Path) -> fetcher.Report:
    sources = fetcher.Sources(pvc_mount=claim, formats=ANY_ENGINE)
    return fetcher.fetch(f"pvc://claim/{name}", "", dest, max_bytes=LIMIT, sources=sources)


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A claim with one GGUF model, which has no config.json."""
    model = tmp_path / "pvc" / "llama"
    model.mkdir(parents=True)
    (model / "model-q4.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    return tmp_path / "pvc"


def test_a_gguf_model_is_taken_and_found_by_the_link(claim: Path, tmp_path: Path) -> None:
    report = fetch(claim, "llama", tmp_path / "dest")
    assert (report.files, report.bytes) == (1, 104)
    assert (tmp_path / "dest" / "current").resolve() == claim / "llama"
    assert fetch(claim, "llama", tmp_path / "dest").digest == report.digest, "a second run finds it"


def test_the_link_follows_another_model(claim: Path, tmp_path: Path) -> None:
    fetch(claim, "llama", tmp_path / "dest")
    shutil.copytree(claim / "llama", claim / "other")
    fetch(claim, "other", tmp_path / "dest")
    assert (tmp_path / "dest" / "current").resolve() == claim / "other"


def test_a_folder_without_weights_is_refused(claim: Path, tmp_path: Path) -> None:
    (claim / "empty").mkdir()
    (claim / "empty" / "config.json").write_text("{}")
    with pytest.raises(UnusableError, match=r"has no weights: no file ends in \.gguf"):
        fetch(claim, "empty", tmp_path / "dest")


@pytest.mark.attack_class(21)
def test_code_and_pickles_stay_behind_for_every_engine(claim: Path, tmp_path: Path) -> None:
    model = claim / "llama"
    (model / "modeling.py").write_text("import os")
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert fetch(claim, "llama", tmp_path / "dest").files == 1
    (model / "model-q4.gguf").unlink()
    with pytest.raises(UnusableError, match="only pickled weights"):
        fetch(claim, "llama", tmp_path / "other")


def test_a_gguf_model_is_refused_for_slipway_server(claim: Path, tmp_path: Path) -> None:
    code, words, _ = run(tmp_path / "dest", f"file://{claim}/llama")
    assert code == os.EX_DATAERR
    assert "config.json" in words
    code, _, _ = run(tmp_path / "dest", f"file://{claim}/llama", "--any-engine")
    assert code == 0
    assert (tmp_path / "dest" / "current").resolve() == claim / "llama"


def test_a_link_replaces_what_is_there(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        folder.link(tmp_path / "current", tmp_path / name)
        assert (tmp_path / "current").resolve() == tmp_path / name
