"""az:// from an emulator of Azure's object store: azurite. `test_objects.py` has the rest."""

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
from tests.fetcher.test_objects import KILLED
from tests.server.process import SOURCES
from tests.support.stores.azure import ACCOUNT, KEY, Azure, azurite, token

pytestmark = [
    pytest.mark.extended,
    pytest.mark.integration,
]
WITH_KEY = {"AZURE_STORAGE_ACCOUNT_KEY": KEY}


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    with azurite(tmp_path_factory.mktemp("azurite") / "log") as served:
        yield served


@pytest.fixture
def container(azure: Azure, request: pytest.FixtureRequest, tiny_v1: Path) -> str:
    """One with the model in folder `chat`."""
    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    azure.put(name, {f"chat/{file}": body for file, body in contents(tiny_v1).items()})
    return name


def flags(azure: Azure) -> tuple[str, ...]:
    return ("--endpoint", azure.url, "--account", ACCOUNT, "--allow-host", "127.0.0.1")


def fetch(azure: Azure, uri: str, dest: Path, variables: dict[str, str]) -> None:
    access = StoreAccess(azure.url, account=ACCOUNT, variables=variables)
    fetcher.fetch(uri, "", dest, max_bytes=LIMIT, sources=fetcher.Sources(HERE, store=access))


@pytest.mark.parametrize("with_key", [False, True], ids=["signature", "key"])
def test_a_model_of_azures_store(azure: Azure, container: str, tiny_v1: Path, tmp_path: Path, with_key: bool) -> None:
    azure.put(container, {"chat/original/a.py": b"", "chat/pytorch_model.bin": b"x", "other/config.json": b"{}"})
    secret = WITH_KEY if with_key else {"AZURE_STORAGE_SAS_TOKEN": token("rl")}
    code, words, log = run(tmp_path / "dest", f"az://{container}/chat", *flags(azure), **secret)
    assert code == 0, words
    marker = json.loads((tmp_path / "dest" / "slipway-model.json").read_bytes())
    assert contents(Path(marker["path"])) == contents(tiny_v1)
    assert marker["left_out"] == ["original/a.py", "pytorch_model.bin"] and '"mb_per_second"' in log
    assert all(value not in log + words + json.dumps(marker) for value in secret.values())


def test_a_killed_download_from_azures_store_goes_on(
    azure: Azure, container: str, tiny_v1: Path, tmp_path: Path
) -> None:
    def started(parts: int) -> int:
        command = [sys.executable, "-c", KILLED, "--uri", f"az://{container}/chat", "--dest", str(tmp_path / "dest")]
        environment = {**os.environ, **WITH_KEY, "PARTS": str(parts), "PYTHONPATH": SOURCES}
        environment["SLIPWAY_TERMINATION_LOG"] = str(tmp_path / "words")
        return subprocess.run([*command, *flags(azure)], env=environment, capture_output=True, check=False).returncode

    assert started(20) == -9
    assert not (tmp_path / "dest" / "slipway-model.json").exists()
    assert started(10**6) == 0
    whole = sum(-(-len(body) // 65536) for body in contents(tiny_v1).values())
    requested = len(azure.gets(container))
    assert whole <= requested <= whole + download.PARALLEL, "more than what was in flight was requested again"
    assert contents(tmp_path / "dest" / "model") == contents(tiny_v1)


@pytest.mark.parametrize("body", [b"x" * 3_121_024, b"longer" * 10**6, None], ids=["another", "longer", "gone"])
def test_an_object_of_azures_store_that_changes_meanwhile(
    azure: Azure, container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes | None
) -> None:
    monkeypatch.setattr(download, "PART_BYTES", 65536)
    monkeypatch.setattr(download, "PARALLEL", 1)
    add = Journal.add

    def changing(*arguments: Any) -> None:
        add(*arguments)
        if arguments[1] == "model.safetensors" and arguments[4] == 5:
            key = "chat/model.safetensors"
            azure.put(container, {key: body}) if body else azure.delete(container, key)

    monkeypatch.setattr(Journal, "add", changing)
    with pytest.raises(FetchError, match="changed during the download"):
        fetch(azure, f"az://{container}/chat", tmp_path / "dest", WITH_KEY)
    assert not (tmp_path / "dest" / "model").exists()


def test_what_is_wrong_at_azures_store_is_told_with_a_remedy(azure: Azure, container: str, tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, str], str]] = [
        ("not-there/chat", WITH_KEY, "There is no container not-there at http://127.0.0.1"),
        (f"{container}/chart", WITH_KEY, f"There is no object under az://{container}/chart/: correct the folder"),
        (f"{container}/chat", {}, "denied without credentials: name a Secret with AZURE_STORAGE_ACCOUNT_KEY or"),
        (f"{container}/chat", {"AZURE_STORAGE_ACCOUNT_KEY": "Y2FuYXJ5"}, "denied to the credentials that were given"),
    ]
    for path, variables, sentence in cases:
        with pytest.raises(FetchError, match=sentence) as caught:
            fetch(azure, f"az://{path}", tmp_path / "dest", variables)
        assert "canary" not in str(caught.value) and "Y2FuYXJ5" not in str(caught.value)
