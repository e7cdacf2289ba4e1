"""gs:// from an emulator of Google Cloud Storage: fake-gcs-server. `test_objects.py` has the rest."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher.folder import FetchError
from slipway_fetcher.objects import download
from slipway_fetcher.objects.access import StoreAccess
from slipway_fetcher.objects.journal import Journal
from tests.fetcher.site import HERE, LIMIT, contents, run
from tests.fetcher.test_objects import KILLED, google_key
from tests.server.process import SOURCES
from tests.support.stores.gcs import GCS, fake_gcs

pytestmark = [pytest.mark.extended, pytest.mark.integration]
__all__ = ["google_key"]


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCS]:
    with fake_gcs(tmp_path_factory.mktemp("gcs") / "log") as served:
        yield served


@pytest.fixture
def bucket(gcs: GCS, request: pytest.FixtureRequest, tiny_v1: Path) -> str:
    """One with the model in folder `chat`."""
    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    gcs.put(name, {f"chat/{file}": body for file, body in contents(tiny_v1).items()})
    return name


def fetch(gcs: GCS, uri: str, dest: Path, **variables: str) -> dict[str, Any]:
    sources = fetcher.Sources(HERE, store=StoreAccess(gcs.url, variables=variables))
    fetcher.fetch(uri, "", dest, max_bytes=LIMIT, sources=sources)
    marker: dict[str, Any] = json.loads((dest / "slipway-model.json").read_bytes())
    return marker


@pytest.mark.parametrize("with_key", [False, True], ids=["public", "service-account"])
def test_a_model_of_googles_store(
    gcs: GCS, bucket: str, tiny_v1: Path, tmp_path: Path, google_key: str, with_key: bool
) -> None:
    gcs.put(bucket, {"chat/original/a.py": b"", "chat/pytorch_model.bin": b"x", "other/config.json": b"{}"})
    gcs.put(bucket, {f"chat/notes/{number:04}.txt": b"x" for number in range(20)})
    key = {"GOOGLE_SERVICE_ACCOUNT_KEY": google_key} if with_key else {}
    flags = ("--endpoint", gcs.url, "--allow-host", "127.0.0.1")
    code, words, log = run(tmp_path / "dest", f"gs://{bucket}/chat", *flags, **key)
    assert code == 0, words
    marker = json.loads((tmp_path / "dest" / "slipway-model.json").read_bytes())
    found = Path(marker["path"])
    assert {name: (found / name).read_bytes() for name in contents(tiny_v1)} == contents(tiny_v1)
    assert len(list((found / "notes").iterdir())) == 20
    assert marker["left_out"] == ["original/a.py", "pytorch_model.bin"] and '"mb_per_second"' in log
    assert json.loads(words)["weights"]["digest"] == marker["digest"]


def test_a_killed_download_from_googles_store_goes_on(gcs: GCS, bucket: str, tiny_v1: Path, tmp_path: Path) -> None:
    def started(parts: int) -> int:
        uri, flags = f"gs://{bucket}/chat", ("--endpoint", gcs.url, "--allow-host", "127.0.0.1")
        command = [sys.executable, "-c", KILLED, "--uri", uri, "--dest", str(tmp_path / "dest"), *flags]
        environment = {**os.environ, "PARTS": str(parts), "PYTHONPATH": SOURCES}
        environment["SLIPWAY_TERMINATION_LOG"] = str(tmp_path / "words")
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    assert started(20) == -9
    assert not (tmp_path / "dest" / "slipway-model.json").exists()
    assert started(10**6) == 0
    whole = sum(-(-len(body) // 65536) for body in contents(tiny_v1).values())
    requested = len(gcs.gets(bucket))
    assert whole <= requested <= whole + download.PARALLEL, "more than what was in flight was requested again"
    assert contents(tmp_path / "dest" / "model") == contents(tiny_v1)


@pytest.mark.parametrize("body", [b"x" * 3_121_024, b"longer" * 10**6, None], ids=["another", "longer", "gone"])
def test_an_object_of_googles_store_that_changes_meanwhile(
    gcs: GCS, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes | None
) -> None:
    monkeypatch.setattr(download, "PART_BYTES", 65536)
    monkeypatch.setattr(download, "PARALLEL", 1)
    add = Journal.add

    def changing(*arguments: Any) -> None:
        add(*arguments)
        if arguments[1] == "model.safetensors" and arguments[4] == 5:
            key = "chat/model.safetensors"
            gcs.put(bucket, {key: body}) if body else gcs.delete(bucket, key)

    monkeypatch.setattr(Journal, "add", changing)
    with pytest.raises(FetchError, match="changed during the download"):
        fetch(gcs, f"gs://{bucket}/chat", tmp_path / "dest")
    assert not (tmp_path / "dest" / "model").exists()


def test_what_is_wrong_at_googles_store_is_told_with_a_remedy(gcs: GCS, bucket: str, tmp_path: Path) -> None:
    """It has no answer of Google's for a bucket that does not exist; moto has."""
    with pytest.raises(FetchError, match=f"There is no object under gs://{bucket}/chart/: correct the folder"):
        fetch(gcs, f"gs://{bucket}/chart", tmp_path / "dest")
    with pytest.raises(FetchError, match="GOOGLE_SERVICE_ACCOUNT_KEY of the Secret is not the JSON key"):
        fetch(gcs, f"gs://{bucket}/chat", tmp_path / "dest", GOOGLE_SERVICE_ACCOUNT_KEY="{")
