"""How far a fetch is, from each source, while a slow site has not sent all of it."""

import contextlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster.ports import reserve_port
from slipway_fetcher import fetching as fetcher
from slipway_fetcher.downloads import FETCH, DownloadState
from slipway_fetcher.folder import ANY_ENGINE
from slipway_fetcher.hub import Hub
from slipway_fetcher.objects import download
from slipway_fetcher.objects.access import StoreAccess
from testkit.until import until
from tests.fetcher.cache.pods import offer_model, take
from tests.fetcher.site import HERE, LIMIT, Site, archive, hub_fetch, offer, offer_repository
from tests.fetcher.test_objects import KEYS, offer_objects

WEIGHTS = b"GGUF" + bytes(3 * 2**20)
HALF = 2 * 2**20  # of the weights: whole chunks of what is read at a time
FILES = {"model.gguf": WEIGHTS, "config.json": b"{}"}
ALL = len(WEIGHTS) + 2


def fetch(site: Site, uri: str, dest: Path) -> None:
    hub, store = Hub(f"http://127.0.0.1:{site.port}"), StoreAccess(f"http://127.0.0.1:{site.port}", variables=KEYS)
    fetcher.fetch(uri, "", dest, max_bytes=LIMIT, sources=fetcher.Sources(HERE, hub, store, formats=ANY_ENGINE))


@contextlib.contextmanager
def during(site: Site, path: str, *calls: Callable[[], object], sent: int = HALF) -> Iterator[None]:
    """Runs calls in threads; the site sends no more than `sent` bytes of a path until the block ends."""
    event, threads = threading.Event(), [threading.Thread(target=call) for call in calls]
    site.held[path] = (sent, event)
    FETCH.begin()
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        event.set()
        site.held.clear()
        for thread in threads:
            thread.join(60)


def reached(done: int, size: int | None) -> DownloadState:
    until(lambda: FETCH.state().done_bytes >= done)
    state = FETCH.state()
    assert (state.done_bytes, state.size_bytes) == (done, size)
    return state


def test_a_hub_and_a_run_that_continues(site: Site, tmp_path: Path) -> None:
    offer_repository(site, FILES)
    path = f"/org/tiny/resolve/{'a' * 40}/model.gguf"
    with during(site, path, lambda: fetch(site, "hf://org/tiny", tmp_path)):
        reached(HALF + 2, ALL)
    assert FETCH.state().done_bytes == ALL
    partial = tmp_path / f"{'b' * 40}.partial"
    partial.mkdir()
    (partial / "config.json").write_bytes(b"{}")
    (partial / "model.gguf").write_bytes(WEIGHTS[:1000])
    offer_repository(site, FILES, "b" * 40)
    path = f"/org/tiny/resolve/{'b' * 40}/model.gguf"
    (tmp_path / "slipway-model.json").unlink()
    with during(site, path, lambda: fetch(site, "hf://org/tiny", tmp_path)):
        reached(1000 + HALF + 2, ALL)
    assert FETCH.state().done_bytes == ALL


def test_a_line_that_breaks_counts_no_byte_twice(https: str, site: Site, tmp_path: Path) -> None:
    offer(site, FILES)
    site.cut = {"/m/model.gguf": [1000, 50]}
    site.headers["/m/model.gguf"] = {"Content-Range": "bytes 0-9/10"}  # so the third begins again
    with during(site, "/m/config.json", lambda: fetch(site, f"{https}/m", tmp_path), sent=0):
        reached(len(WEIGHTS), ALL)


def test_an_archive_has_a_size_where_the_server_sends_it(https: str, site: Site, tmp_path: Path) -> None:
    packed = archive({"model.gguf": os.urandom(4 * 2**20), "config.json": b"{}"})
    site.files["/m.tar.gz"] = packed
    with during(site, "/m.tar.gz", lambda: fetch(site, f"{https}/m.tar.gz", tmp_path)):
        reached(HALF, len(packed))


def test_parts_of_objects_that_are_tried_again_count_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_objects(site, "bucket", FILES)
    site.cut = {"/bucket/chat/model.gguf": [2**20]}
    monkeypatch.setattr(download, "BACKOFF_S", 0.01)
    fetch(site, "s3://bucket/chat", tmp_path)
    assert sum(path.endswith(".gguf") for path, _ in site.requests) == 2
    assert FETCH._done == ALL, "unlike the state it is not limited to the size"


def test_a_pod_that_waits_for_another_ones_download(site: Site, tmp_path: Path) -> None:
    offer_model(site, WEIGHTS)
    cache, path = tmp_path / "cache", f"/org/tiny/resolve/{'a' * 40}/model.gguf"
    with during(site, path, lambda: take(site, tmp_path / "one", cache)):
        reached(HALF + 2, ALL)
        second = threading.Thread(target=lambda: take(site, tmp_path / "two", cache))
        second.start()
        until(lambda: FETCH.state().waiting)
    second.join(60)
    assert not FETCH.state().waiting


@pytest.mark.integration
def test_the_process_serves_it_until_it_ends(site: Site, tmp_path: Path) -> None:
    offer_repository(site, FILES)
    port, ended = reserve_port(), list[tuple[int, str]]()
    variables = {"SLIPWAY_PROGRESS_PORT": str(port)}

    def run() -> None:
        ended.append(hub_fetch(site, tmp_path / "dest", "hf://org/tiny", "--any-engine", **variables))

    def text() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                return str(response.read().decode())
        except OSError:
            return ""

    with during(site, f"/org/tiny/resolve/{'a' * 40}/model.gguf", run):
        until(lambda: f"slipway_fetch_downloaded_bytes {HALF + 2}\n" in text())
        assert f"slipway_fetch_size_bytes {ALL}\n" in text()
    assert ended[0][0] == 0, ended
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


@pytest.mark.integration
def test_a_port_that_another_process_has_stops_no_fetch(site: Site, tmp_path: Path) -> None:
    offer_repository(site, FILES)
    code, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny", "--any-engine", "--progress-port", str(site.port))
    assert code == 0, words
