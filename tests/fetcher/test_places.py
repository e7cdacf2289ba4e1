"""Models that are used where they lie: file:// and pvc://."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher import pin
from slipway_fetcher.checksums import known
from slipway_fetcher.folder import FetchError, UnusableError
from slipway_process.model_folder.checkpoint import CheckpointError, read
from tests.fetcher.site import LIMIT, fetch, run


def test_a_file_uri_is_used_in_place(tiny_v1: Path, tmp_path: Path) -> None:
    marker = fetch(f"file://{tiny_v1}", tmp_path / "dest")
    assert (marker["path"], marker["uri"], marker["revision"]) == (str(tiny_v1), f"file://{tiny_v1}", "")
    weights = tiny_v1 / "model.safetensors"
    assert marker["files"]["model.safetensors"] == {
        "size": weights.stat().st_size,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    assert read(tmp_path / "dest").folder == tiny_v1


def test_a_pvc_is_used_in_place(tiny_v1: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_v1, tmp_path / "pvc" / "models" / "tiny")
    mount = tmp_path / "pvc"
    sources = fetcher.Sources(pvc_mount=mount)
    fetcher.fetch("pvc://claim/models/tiny", "", tmp_path / "dest", max_bytes=LIMIT, sources=sources)
    assert read(tmp_path / "dest").folder == mount / "models" / "tiny"
    with pytest.raises(FetchError, match="leads out"):
        fetcher.fetch("pvc://claim/../etc", "", tmp_path / "other", max_bytes=LIMIT, sources=sources)


@pytest.mark.attack_class(4)
def test_the_broken_model_is_refused_and_leaves_no_marker(tiny_broken: Path, tmp_path: Path) -> None:
    code, words, _ = run(tmp_path / "dest", f"file://{tiny_broken}")
    assert code == os.EX_DATAERR
    assert "model-00002-of-00002.safetensors is missing" in words
    assert not (tmp_path / "dest" / "slipway-model.json").exists()


@pytest.mark.attack_class(21)
def test_links_that_lead_out_are_refused(tiny_v1: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_v1, tmp_path / "model"))
    (folder / "inside.json").symlink_to("config.json")
    fetch(f"file://{folder}", tmp_path / "dest")
    (folder / "outside.json").symlink_to("/etc/passwd")
    with pytest.raises(FetchError, match=r"outside\.json is a link that leads out"):
        fetch(f"file://{folder}", tmp_path / "other")


@pytest.mark.attack_class(21)
def test_a_link_to_itself_is_a_missing_file(tiny_v1: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_v1, tmp_path / "model"))
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        fetch(f"file://{folder}", tmp_path / "dest")


@pytest.mark.attack_class(1)
@pytest.mark.parametrize("uri", ["ftp://host/model", "http://host/model", "/models/x", "file:///nowhere"])
def test_other_uris_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError):
        fetch(uri, tmp_path)


def copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


@pytest.mark.finding(23, "S13")
@pytest.mark.attack_class(3, 4)
def test_pickles_beside_safetensors_are_named(tiny_v1: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Safety 23 and S13: they were skipped in silence."""
    folder = copy(tiny_v1, tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling.py").write_text("import os")
    with caplog.at_level(logging.WARNING):
        marker = fetch(f"file://{folder}", tmp_path / "dest")
    assert "pickled files, which are left out: pytorch_model.bin" in caplog.text
    assert marker["left_out"] == ["modeling.py", "pytorch_model.bin"]


@pytest.mark.finding("S13")
@pytest.mark.attack_class(5)
def test_code_of_a_repository_is_named_and_never_run(
    tiny_v1: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S13: `auto_map` was passed over in silence."""
    folder = copy(tiny_v1, tmp_path / "model")
    config = json.loads((folder / "config.json").read_bytes()) | {"auto_map": {"AutoModelForCausalLM": "modeling.M"}}
    ran = tmp_path / "ran"
    (folder / "modeling.py").write_text(f"open({str(ran)!r}, 'w')")
    (folder / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING):
        fetch(f"file://{folder}", tmp_path / "dest")
    assert "names code of its own (auto_map), which is never run" in caplog.text and "modeling.M" in caplog.text
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnusableError, match=r"only code of its own .*modeling\.M.*, which is never run"):
        fetch(f"file://{folder}", tmp_path / "other")
    assert not ran.exists()


def test_a_model_in_place_has_no_size_limit(tiny_v1: Path, tmp_path: Path) -> None:
    """Nothing is written: what --max-bytes bounds is the disk of the pod."""
    fetch(f"file://{tiny_v1}", tmp_path, max_bytes=1)


@pytest.mark.finding(20)
def test_a_folder_pinned_by_its_digest(tiny_v1: Path, tmp_path: Path) -> None:
    """Safety 20: a sha256: pin could be given to no folder."""
    digest = fetch(f"file://{tiny_v1}", tmp_path / "dest")["digest"]
    assert fetch(f"file://{tiny_v1}", tmp_path / "again", digest)["digest"] == digest
    wrong = "sha256:" + "0" * 64
    with pytest.raises(UnusableError, match=rf"has {digest}; spec\.model\.revision is {wrong}\."):
        fetch(f"file://{tiny_v1}", tmp_path / "other", wrong)
    with pytest.raises(FetchError, match="sha256: and 64 hexadecimal digits, not 'main'"):
        fetch(f"file://{tiny_v1}", tmp_path / "other", "main")


def test_the_digest_is_what_sha256sum_prints(tiny_v1: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in tiny_v1.iterdir())
    lines = "".join(f"{hashlib.sha256((tiny_v1 / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    expected = "sha256:" + hashlib.sha256(lines.encode()).hexdigest()
    assert fetch(f"file://{tiny_v1}", tmp_path)["digest"] == expected == pin.digest_of(known.of_folder(tiny_v1))


@pytest.mark.finding(26)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_weights_that_are_not_files_are_refused(tiny_v1: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Safety 26, found by fuzzing: a folder was an exception, and a pipe was read from without an end."""
    copied = tmp_path / "model"
    shutil.copytree(tiny_v1, copied)
    (copied / "model.safetensors").unlink()
    make(copied / "model.safetensors")
    with pytest.raises(CheckpointError, match="has no weights"):
        read(copied)
