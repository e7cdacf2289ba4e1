"""A disk that is full: one sentence and exit code 66, wherever it happens."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_fetcher import folder
from slipway_fetcher.folder import DiskFullError
from tests.fetcher.site import Site, archive, contents, fetch, hub_fetch, offer, offer_repository

pytestmark = [pytest.mark.attack_class(15), pytest.mark.finding(26)]
SENTENCE = "There is no room for the model: "
TINY_BYTES = 64 * 1024
SHORT_BYTES = 256 * 1024  # only model.safetensors is longer


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real one of 64 KiB, where the tests may mount it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TINY_BYTES}", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk: the other tests of this file limit the size of files instead")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def short_files() -> Iterator[None]:
    """No file of this process may be longer: a write beyond fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SHORT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_message(error: BaseException) -> None:
    assert str(error).startswith(SENTENCE)


def test_a_disk_that_is_too_small_is_refused_before_it_is_full(site: Site, tiny_v1: Path, small_disk: Path) -> None:
    """Review, untested until now: disk full in the fetcher."""
    offer_repository(site, contents(tiny_v1))
    code, words = hub_fetch(site, small_disk / "dest", "hf://org/tiny")
    assert code == os.EX_NOINPUT and words.startswith(SENTENCE)
    assert not any("safetensors" in path for path, _ in site.requests)


def test_two_models_on_a_volume_share_its_bytes(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    """A draft model had as many for itself as the model, and the kubelet evicted the pod."""
    offer_repository(site, contents(tiny_v1))
    volume, draft = tmp_path / "models", tmp_path / "models" / "draft"
    size = sum(map(len, contents(tiny_v1).values()))

    def fetched(dest: Path, limit: int, *flags: str) -> tuple[int, str]:
        return hub_fetch(site, dest, "hf://org/tiny", "--max-bytes", str(limit), *flags)

    assert fetched(volume, size)[0] == 0
    beside = folder.bytes_beside(volume, draft)
    assert size <= beside < size + 4096
    code, words = fetched(draft, beside + size - 1, "--max-bytes-of", str(volume))
    assert (
        code == os.EX_DATAERR and f"the limit is {size - 1}. {beside} of {beside + size - 1} bytes are taken" in words
    )
    code, words = fetched(draft, beside - 1, "--max-bytes-of", str(volume))
    assert code == os.EX_DATAERR and "the limit is 0." in words
    assert fetched(draft, beside + size, "--max-bytes-of", str(volume))[0] == 0
    (volume / "words").unlink()
    assert folder.bytes_beside(volume, draft) == beside, "what is in --dest is not beside it"
    assert fetched(draft, 1, "--max-bytes-of", str(volume))[0] == 0, "a model that is whole is not fetched again"


def test_what_counts_beside_a_model_are_files_once_and_on_its_disk(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "model").write_bytes(bytes(100))
    (tmp_path / "again").hardlink_to(tmp_path / "model")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    (tmp_path / "slipway-model.json").write_text("a marker")
    (small_disk / "other").write_bytes(bytes(1000))
    assert folder.bytes_beside(tmp_path, tmp_path / "draft") == 100


def test_a_disk_that_others_fill_meanwhile(https: str, site: Site, tiny_v1: Path, small_disk: Path) -> None:
    """The length of an archive is not requested first."""
    site.files["/m.tar"] = archive(contents(tiny_v1))
    with pytest.raises(DiskFullError) as caught:
        fetch(f"{https}/m.tar", small_disk / "dest")
    check_message(caught.value)


def test_a_write_that_fails(https: str, site: Site, tiny_v1: Path, tmp_path: Path, short_files: None) -> None:
    offer(site, contents(tiny_v1))
    with pytest.raises(DiskFullError) as caught:
        fetch(f"{https}/m", tmp_path)
    check_message(caught.value)
    assert sum(path == "/m/model.safetensors" for path, _ in site.requests) == 1, "a full disk was tried again"
    assert not (tmp_path / "slipway-model.json").exists()


def test_a_write_that_fails_in_an_archive(
    https: str, site: Site, tiny_v1: Path, tmp_path: Path, short_files: None
) -> None:
    body = archive({"config.json": b"{}", "model.safetensors": bytes(4 * SHORT_BYTES)})
    assert len(body) < SHORT_BYTES
    site.files["/m.tar"] = body
    with pytest.raises(DiskFullError) as caught:
        fetch(f"{https}/m.tar", tmp_path)
    check_message(caught.value)


def test_the_error_names_the_free_bytes(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(DiskFullError, match=r"bytes more are needed, \d+ are free"):
        folder.check_room(tmp_path, free * 2)


def test_files_and_folders_of_an_earlier_list_go(tmp_path: Path) -> None:
    for name in ("a/b/c.json", "kept/d.json", "e.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    folder.keep_only(tmp_path, ["kept/d.json", "a"])
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")} == {"kept", "kept/d.json"}
