"""hf:// against a small hub."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_process.model_folder.checkpoint import read
from tests.fetcher.site import Site, contents, hub_fetch, offer_repository, run, running_site


@pytest.fixture
def elsewhere() -> Iterator[Site]:
    """Where a hub's files are, on another host."""
    with running_site() as site:
        yield site


def test_a_repository_of_a_hub(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    offer_repository(site, files | {"pytorch_model.bin": b"pickle", "code.py": b"import os"})
    status, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny", "--revision", "main")
    assert status == 0, words
    assert contents(read(tmp_path / "dest").folder) == files
    assert not any("pytorch_model" in path for path, _ in site.requests)
    report = json.loads(words)["weights"]
    assert (report["commit"], report["files"], report["pinned"]) == ("a" * 40, len(files), False)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", report["digest"])


def test_a_repository_that_cannot_be_used(site: Site, tmp_path: Path) -> None:
    offer_repository(site, {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    status, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny")
    assert status == os.EX_DATAERR and words.startswith("hf://org/tiny has only pickled weights")
    status, words = hub_fetch(site, tmp_path / "dest", "hf://org/other")
    assert status == os.EX_NOINPUT and "hf://org/other cannot be fetched at revision main" in words


@pytest.mark.finding(21, 23)
@pytest.mark.attack_class(14)
def test_the_token_is_sent_to_the_hub_only_and_never_printed(
    site: Site, elsewhere: Site, tiny_v1: Path, tmp_path: Path
) -> None:
    """Safety 21, 23: a redirect to another host does not take it along."""
    offer_repository(site, contents(tiny_v1))
    weights = next(path for path in site.files if path.endswith("model.safetensors"))
    elsewhere.files["/blob"] = site.files[weights]
    site.redirects[weights] = f"http://localhost:{elsewhere.port}/blob"
    config = next(path for path in site.files if path.endswith("/config.json"))
    site.files["/moved"] = site.files[config]
    site.redirects[config] = "/moved"
    token = "hf_canary0123456789"
    environment = {"HF_ENDPOINT": f"http://127.0.0.1:{site.port}", "HF_TOKEN": token, "SLIPWAY_LOG_LEVEL": "DEBUG"}
    hosts = ["--allow-host", "127.0.0.1", "--allow-host", "localhost"]
    code, words, log = run(tmp_path / "dest", "hf://org/tiny", *hosts, **environment)
    assert code == 0, words
    assert {headers.get("Authorization") for _, headers in site.seen} == {f"Bearer {token}"}
    assert [headers.get("Authorization") for _, headers in elsewhere.seen] == [None]
    written = "".join(path.read_text(errors="replace") for path in (tmp_path / "dest").rglob("*") if path.is_file())
    assert token not in words + log + written


@pytest.mark.attack_class(14)
def test_a_malformed_token_is_not_printed(site: Site, tmp_path: Path) -> None:
    code, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny", HF_TOKEN="canary with\nspaces")
    assert code == os.EX_NOINPUT and words == "HF_TOKEN is no token: it has spaces or characters that no token has."


@pytest.mark.parametrize(("status", "advice"), [(401, "spec.model.secretRef"), (403, "ask for access")])
def test_a_forbidden_repository_gives_advice(site: Site, tmp_path: Path, status: int, advice: str) -> None:
    site.statuses = [status]
    code, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny")
    assert code == os.EX_NOINPUT and advice in words and f"answered {status}" in words


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_that_differ_from_the_hubs_list_are_refused(site: Site, tiny_v1: Path, tmp_path: Path, name: str) -> None:
    """Large files by their sha256, small ones by their id in git."""
    offer_repository(site, contents(tiny_v1))
    path = f"/org/tiny/resolve/{'a' * 40}/{name}"
    body = site.files[path]
    site.files[path] = body[:-1] + bytes([body[-1] ^ 1])
    code, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny")
    assert code == os.EX_DATAERR and f"{name} of hf://org/tiny does not have the size and checksum" in words


@pytest.mark.attack_class(21)
def test_names_of_a_repository_that_lead_out(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer_repository(site, contents(tiny_v1) | {"../../evil.json": b"{}"})
    code, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny")
    assert code == os.EX_DATAERR and "leads out of the model folder" in words


@pytest.mark.parametrize("about", [b"[]", b"{}", b'{"sha": "main", "siblings": []}', b"<html>", b"[" * 100_000])
def test_a_hub_that_answers_nonsense(site: Site, tmp_path: Path, about: bytes) -> None:
    site.files["/api/models/org/tiny/revision/main"] = about
    code, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny")
    assert code == os.EX_NOINPUT and words.startswith("The hub")


def test_an_interrupted_download_continues_with_the_same_commit(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer_repository(site, contents(tiny_v1))
    path = f"/org/tiny/resolve/{'a' * 40}/model.safetensors"
    weights = site.files.pop(path)
    code, _ = hub_fetch(site, tmp_path / "dest", "hf://org/tiny")
    assert code == os.EX_NOINPUT
    site.files[path] = weights
    (tmp_path / "dest" / f"{'a' * 40}.partial" / "model.safetensors").write_bytes(weights[:5000])
    site.requests.clear()
    assert hub_fetch(site, tmp_path / "dest", "hf://org/tiny")[0] == 0
    assert (path, "bytes=5000-") in site.requests
    assert not any("tokenizer.json" in where for where, _ in site.requests)
