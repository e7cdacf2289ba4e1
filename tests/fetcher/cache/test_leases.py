"""What pods use stays, and what they used longest ago goes first."""

import os
import signal
from pathlib import Path

import pytest

from slipway_fetcher.cache import leases, locks, store
from slipway_fetcher.cache.__main__ import prepare
from slipway_fetcher.cache.locks import CacheError
from slipway_fetcher.cache.store import ModelCache
from testkit.until import until
from tests.fetcher.cache.pods import lease, models, offer_model, take
from tests.fetcher.site import Site

SIZE = 2**20
pytestmark = pytest.mark.integration


def _limit(root: Path, max_bytes: int) -> None:
    root.mkdir(exist_ok=True)
    (root / store.LIMIT).write_text(str(max_bytes))


def _take(site: Site, root: Path, letter: str, pod: str = "") -> str:
    """Another model of one mebibyte; its digest."""
    offer_model(site, b"GGUF" + letter.encode() * SIZE, letter * 40)
    dest = root.parent / (pod or f"pod-{letter}")
    return take(site, dest, root, scope=letter, pod=pod).digest[7:]


def test_the_model_that_was_not_used_for_longest_goes(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    _limit(root, int(2.5 * SIZE))
    a, b = _take(site, root, "a"), _take(site, root, "b")
    _aged(root, b, 100)
    _aged(root, a, 50)
    c = _take(site, root, "c")
    assert models(root) == sorted((a, c)), b


def test_what_a_pod_uses_stays(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    _limit(root, int(2.5 * SIZE))
    with lease(root, "uid-a", tmp_path / "uid-a"), lease(root, "uid-b", tmp_path / "uid-b"):
        a, b = _take(site, root, "a", "uid-a"), _take(site, root, "b", "uid-b")
        with pytest.raises(CacheError, match=r"There is no room for the model in the cache: \d+ bytes"):
            _take(site, root, "c")
        assert models(root) == sorted((a, b))
    c = _take(site, root, "c")
    assert len(models(root)) == 2 and c in models(root)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_lease_ends_with_its_pod(site: Site, tmp_path: Path, end: signal.Signals) -> None:
    root = tmp_path / "cache"
    _limit(root, int(1.5 * SIZE))
    with lease(root, "uid-a", tmp_path / "uid-a", end):
        _take(site, root, "a", "uid-a")
    b = _take(site, root, "b")
    assert models(root) == [b] and not list((root / leases.FOLDER).iterdir())


def test_a_restarted_lease_names_what_the_pod_uses(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    _limit(root, int(1.5 * SIZE))
    with lease(root, "uid-a", tmp_path / "uid-a", signal.SIGKILL):
        a = _take(site, root, "a", "uid-a")
    (root / leases.FOLDER / "uid-a").unlink()
    with lease(root, "uid-a", tmp_path / "uid-a"):
        until(lambda: (root / leases.FOLDER / "uid-a").read_text() == f"sha256:{a}")
        with pytest.raises(CacheError, match="pods use all other models"):
            _take(site, root, "b")


def test_a_download_that_was_given_up_goes_before_a_model_in_use(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    _limit(root, int(2.5 * SIZE))
    left = root / "work" / "f" / "x.partial"
    left.mkdir(parents=True)
    (left / "part").write_bytes(bytes(2 * SIZE))
    with lease(root, "uid-a", tmp_path / "uid-a"):
        a = _take(site, root, "a", "uid-a")
    assert models(root) == [a] and not list((root / "work").iterdir())


def test_a_download_in_progress_keeps_its_reservation(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    _limit(root, int(1.5 * SIZE))
    cache = ModelCache(root)
    with cache.downloading("e" * 64, lambda: None):
        cache.make_room("e" * 64, SIZE)
        with pytest.raises(CacheError, match="bytes are missing"):
            _take(site, root, "b")
    assert _take(site, root, "b") in models(root)


def test_a_model_that_is_larger_than_the_cache(site: Site, tmp_path: Path) -> None:
    _limit(tmp_path / "cache", SIZE)
    with pytest.raises(CacheError, match=r"raise modelCache\.maxBytes"):
        _take(site, tmp_path / "cache", "a")


def test_a_fetcher_waits_for_the_container_with_the_lease(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LEASE_LIMIT_S", 0.2)
    with pytest.raises(CacheError, match="The container `lease` of this pod did not start"):
        _take(site, tmp_path / "cache", "a", "uid-a")


def test_one_process_holds_the_lease_of_a_pod(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    with lease(root, "uid-a", tmp_path):
        assert leases.take(leases.path_of(root, "uid-a")) is None


@pytest.mark.parametrize("pod", ["../x", "", "a/b", "-a", "a" * 65])
def test_a_pod_is_named_by_its_uid(tmp_path: Path, pod: str) -> None:
    with pytest.raises(CacheError, match="is not the uid of a pod"):
        leases.path_of(tmp_path, pod)


def test_a_lock_that_is_held_for_too_long(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locks.locked(lock), pytest.raises(CacheError, match="is held for more than 0 s"), locks.locked(lock, 0.1):
        pass


def test_a_lock_whose_file_was_removed_is_another_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locks.locked(lock):
        lock.unlink()
        with locks.locked(lock, 1):
            pass


def test_a_node_gets_a_folder_for_each_namespace(tmp_path: Path) -> None:
    for size in (5, 7):
        prepare(tmp_path / "models", ["team-a", "team-b"], size, os.getgid())
    folder = tmp_path / "models" / "team-a"
    assert oct(folder.stat().st_mode)[-4:] == "1775"
    assert (folder / store.LIMIT).read_text() == "7"
    assert [path.name for path in folder.iterdir()] == [store.LIMIT]


@pytest.mark.attack_class(21)
def test_a_limit_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    """Tenants may write in the folder; the process that prepares it is root."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = tmp_path / "models" / "team-a"
    folder.mkdir(parents=True)
    (folder / store.LIMIT).symlink_to(victim)
    prepare(tmp_path / "models", ["team-a"], 5, os.getgid())
    assert victim.read_text() == "kept" and not (folder / store.LIMIT).is_symlink()


@pytest.mark.parametrize("name", ["..", "a/b", "", "Team", "a" * 64])
def test_a_namespace_is_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(CacheError, match="is no namespace"):
        prepare(tmp_path, [name], 1, os.getgid())


def _aged(root: Path, digest: str, seconds: int) -> None:
    record = root / "models" / digest / "entry.json"
    then = record.stat().st_mtime - seconds
    os.utime(record, (then, then))
