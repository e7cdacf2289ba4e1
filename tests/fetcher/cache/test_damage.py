"""Entries that are not what they were, and processes that die in the middle."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway_fetcher.cache import entries, store
from tests.fetcher.cache.pods import models, offer_model, start, take, weights_requests
from tests.fetcher.site import Site

WEIGHTS = b"GGUF" + bytes(2 * 2**20)


def _flip(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(10)
        file.write(b"\xff")


def _cut(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 100)


def _replace(path: Path) -> None:
    """Another file of the same size and time, and often with the same inode."""
    before = path.stat()
    path.unlink()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _rewrite(path: Path) -> None:
    """The same inode with other bytes, of the same size and time."""
    before = path.stat()
    path.chmod(0o644)
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _config(path: Path) -> None:
    """A small file is compared by its digest, whatever its time is."""
    small = path.with_name("config.json")
    before = small.stat()
    small.chmod(0o644)
    small.write_bytes(b"[]")
    os.utime(small, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("spoil", [_flip, _cut, _replace, _rewrite, _config, Path.unlink], ids=lambda f: f.__name__)
def test_a_damaged_entry_is_fetched_again(site: Site, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    offer_model(site, WEIGHTS)
    take(site, tmp_path / "pod1", tmp_path / "cache")
    spoil((tmp_path / "pod1" / "current" / "model.gguf").resolve())
    assert not take(site, tmp_path / "pod2", tmp_path / "cache").cached
    assert (tmp_path / "pod2" / "current" / "model.gguf").read_bytes() == WEIGHTS
    assert weights_requests(site) == 2


@pytest.mark.parametrize("text", ["", "{", '{"digest": "sha256:0"}', '{"digest": 1, "files": {"../x": {}}}', "[]"])
def test_a_damaged_record_is_fetched_again(site: Site, tmp_path: Path, text: str) -> None:
    offer_model(site, WEIGHTS)
    digest = take(site, tmp_path / "pod1", tmp_path / "cache").digest
    (tmp_path / "cache" / "models" / digest[7:] / "entry.json").write_text(text)
    assert not take(site, tmp_path / "pod2", tmp_path / "cache").cached
    assert take(site, tmp_path / "pod3", tmp_path / "cache").cached


def test_another_time_is_no_damage(site: Site, tmp_path: Path) -> None:
    """A copy of the folder has other times and inodes: digests decide once, then the new times count."""
    offer_model(site, WEIGHTS)
    take(site, tmp_path / "pod1", tmp_path / "cache")
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    for _ in range(2):
        assert take(site, tmp_path / "pod2", tmp_path / "copy").cached
    (digest,) = models(tmp_path / "copy")
    folder = tmp_path / "copy" / "models" / digest
    found = entries.read(folder)
    assert found and found == entries.refreshed(folder / entries.FILES, found)


def test_a_record_leads_nowhere_else(tmp_path: Path) -> None:
    entry = entries.CacheEntry("sha256:" + "0" * 64, "", {"../../etc/passwd": entries.CachedFile(1, "0", 1, 1)})
    entries.write(tmp_path, entry)
    assert entries.read(tmp_path) is None


class DiedError(BaseException):
    """The process ends here."""


STEPS = ((Path, "rename"), (Path, "mkdir"), (Path, "write_text"), (shutil, "rmtree"), (os, "fsync"), (entries, "write"))


def test_a_death_at_every_step_of_the_publication(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next process finds is whole or nothing, and no bytes but those of the model stay."""
    offer_model(site, WEIGHTS)
    died = 0
    for limit in range(1, 200):
        root, before = tmp_path / f"cache{limit}", weights_requests(site)
        with monkeypatch.context() as patch:
            left = [limit]
            for owner, name in STEPS:
                _dying(patch, owner, name, left)
            try:
                take(site, tmp_path / f"pod{limit}", root)
            except DiedError:
                died += 1
            else:
                break
        found = take(site, tmp_path / f"next{limit}", root)
        assert found.bytes == len(WEIGHTS) + 2
        assert (tmp_path / f"next{limit}" / "current" / "model.gguf").read_bytes() == WEIGHTS
        assert weights_requests(site) - before <= 2
        assert models(root) == [found.digest[7:]] and _bytes_below(root / "work") < 4096
    assert died > 10


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _dying(patch: pytest.MonkeyPatch, owner: Any, name: str, left: list[int]) -> None:
    real = getattr(owner, name)

    def step(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] <= 0:
            raise DiedError  # also in handlers: those of a killed process do nothing
        return real(*arguments, **more)

    patch.setattr(owner, name, step)


@pytest.mark.integration
def test_fetchers_killed_at_any_time(site: Site, tmp_path: Path) -> None:
    offer_model(site, b"GGUF" + random.Random(7).randbytes(8 * 2**20))
    root, chance = tmp_path / "cache", random.Random()
    for number in range(6):
        process = start(site, tmp_path / f"pod{number}", root)
        time.sleep(chance.uniform(0.5, 2.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = start(site, tmp_path / "last", root)
    assert last.wait(60) == 0
    assert _bytes_below(root / "work") < 4096 and len(models(root)) == 1
    entry = entries.read(root / "models" / models(root)[0])
    assert entry and not entries.damage(root / "models" / models(root)[0], entry)
    assert store.ModelCache(root).find(entry.digest)
