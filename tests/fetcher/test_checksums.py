"""Digests that are computed while files come: right in any order, and never of a file that has changed."""

import errno
import hashlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher.checksums.following import FollowingDigest
from slipway_fetcher.checksums.growing import GrowingDigest, GrowingFile
from slipway_fetcher.checksums.known import KNOWN, sha256_of
from slipway_fetcher.folder import FetchError
from slipway_fetcher.hub import Hub
from slipway_fetcher.objects import download
from slipway_fetcher.objects.access import StoreAccess
from tests.fetcher.site import HERE, LIMIT, Site, archive, contents, fetch, offer, offer_repository
from tests.fetcher.test_objects import KEYS, offer_objects


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("left", [(), (0, 1, 2, 7), tuple(range(40))], ids=["new", "continued", "all-but-one"])
def test_a_digest_follows_parts_that_threads_finish_in_any_order(tmp_path: Path, left: tuple[int, ...]) -> None:
    path, body = tmp_path / "a", random.Random(1).randbytes(41 * 1000 - 1)
    path.write_bytes(body)
    following = FollowingDigest(path, len(body), 1000, left)
    parts = [number for number in range(41) if number not in left]
    random.Random(2).shuffle(parts)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(following.finish, parts))
    assert KNOWN.of(path) == sha256(body)


def test_a_digest_of_a_file_that_lacks_a_part_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(30))
    following = FollowingDigest(path, 30, 10)
    for number in (0, 2):
        following.finish(number)
    assert KNOWN.of(path) is None
    os.truncate(path, 15)
    with pytest.raises(FetchError, match="a became shorter while it was downloaded"):
        following.finish(1)


def test_a_digest_goes_on_with_what_an_earlier_run_left(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"earlier,")
    digest = GrowingDigest(path)
    for part in (b"first,", b"second"):  # two attempts of one run
        with GrowingFile(path, path.stat().st_size, digest) as file:
            file.write(memoryview(part))
    digest.note()
    assert path.read_bytes() == b"earlier,first,second" and KNOWN.of(path) == sha256(path.read_bytes())
    with GrowingFile(path, 0, digest) as file:
        file.write(memoryview(b"from the beginning"))
    digest.note()
    assert KNOWN.of(path) == sha256(b"from the beginning") and path.read_bytes() == b"from the beginning"


def test_a_file_that_changed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    KNOWN.note(path, "known")
    assert sha256_of(path) == "known"
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert sha256_of(path) == sha256(b"two")


def check_all_known(model: Path, files: dict[str, bytes]) -> None:
    assert contents(model) == files
    assert {path.name: KNOWN.of(path) for path in model.iterdir()} == {name: sha256(files[name]) for name in files}


def test_no_source_leaves_a_file_to_be_read_again(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    offer_repository(site, files)
    offer_objects(site, "bucket", files)
    sources = fetcher.Sources(HERE, Hub(https), StoreAccess(https, variables=KEYS))
    for uri, name in (("hf://org/tiny", "hub"), ("s3://bucket/chat", "bucket")):
        fetcher.fetch(uri, "", tmp_path / name, max_bytes=LIMIT, sources=sources)
        check_all_known(tmp_path / name / "model", files)
    offer(site, files)
    fetch(f"{https}/m", tmp_path / "manifest")
    check_all_known(tmp_path / "manifest" / "model", files)
    site.files["/m.tar"] = archive(files)
    fetch(f"{https}/m.tar", tmp_path / "archive")
    check_all_known(tmp_path / "archive" / "model", files)


def test_a_download_that_breaks_off_has_the_digest_of_all_of_it(
    https: str, site: Site, tiny_v1: Path, tmp_path: Path
) -> None:
    offer(site, contents(tiny_v1))
    site.cut["/m/model.safetensors"] = [1000, 70_000]
    marker = fetch(f"{https}/m", tmp_path)
    assert marker["files"]["model.safetensors"]["sha256"] == sha256((tiny_v1 / "model.safetensors").read_bytes())


@pytest.mark.parametrize("refused", [errno.ENOSYS, None], ids=["without-splice", "splice"])
def test_a_store_behind_http_with_and_without_splice(
    site: Site, tiny_v1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    def splice(*_: Any) -> int:
        raise OSError(refused, "refused")

    if refused:
        monkeypatch.setattr(os, "splice", splice)
    offer_objects(site, "bucket", contents(tiny_v1))
    access = StoreAccess(f"http://127.0.0.1:{site.port}", variables=KEYS)
    fetcher.fetch("s3://bucket/chat", "", tmp_path, max_bytes=LIMIT, sources=fetcher.Sources(HERE, store=access))
    check_all_known(tmp_path / "model", contents(tiny_v1))


def test_parts_of_a_few_files_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FILES", 2)
    files = (iter([f"{name}{number}" for number in range(count)]) for name, count in (("a", 3), ("b", 1), ("c", 2)))
    assert list(download.in_turns(files)) == ["a0", "b0", "a1", "a2", "c0", "c1"]
