"""Folders over https://, with interruptions."""

import hashlib
import json
from pathlib import Path

import pytest

from slipway_fetcher.folder import FetchError, UnusableError
from tests.fetcher.site import Site, contents, fetch, manifest_of, offer


def test_a_listed_folder_over_https(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    offer(site, files | {"training_args.bin": b"pickle"})
    site.cut = {"/m/model.safetensors": [100]}
    marker = fetch(f"{https}/m", tmp_path)
    assert contents(Path(marker["path"])) == files
    assert marker["left_out"] == ["training_args.bin"]
    assert any(wanted == "bytes=100-" for _, wanted in site.requests), "the file was not continued"
    assert not any("training_args" in path for path, _ in site.requests)
    before = len(site.requests)
    fetch(f"{https}/m", tmp_path)
    assert len(site.requests) == before, "a finished download was repeated"


def test_failures_are_retried_a_few_times(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, contents(tiny_v1))
    site.statuses = [503, 500, 429]
    fetch(f"{https}/m", tmp_path / "a")
    site.statuses = [503] * 10
    with pytest.raises(FetchError, match=r"failed 5 times, last: 503"):
        fetch(f"{https}/m", tmp_path / "b")
    site.statuses = []
    with pytest.raises(FetchError, match="answered 404"):
        fetch(f"{https}/other", tmp_path / "c")


def test_an_interrupted_run_is_continued(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, contents(tiny_v1))
    weights = site.files.pop("/m/model.safetensors")
    with pytest.raises(FetchError):
        fetch(f"{https}/m", tmp_path)
    site.files["/m/model.safetensors"] = weights
    (tmp_path / "model.partial" / "model.safetensors").write_bytes(weights[:5000])
    site.requests.clear()
    fetch(f"{https}/m", tmp_path)
    assert ("/m/model.safetensors", "bytes=5000-") in site.requests
    assert "/m/tokenizer.json" not in [path for path, _ in site.requests]


def test_a_partial_file_of_an_earlier_upload_is_downloaded_again(
    https: str, site: Site, tiny_v1: Path, tmp_path: Path
) -> None:
    """Seen: it was continued, and the mismatch was reported as permanent."""
    offer(site, contents(tiny_v1))
    partial = tmp_path / "model.partial" / "model.safetensors"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(5000))
    fetch(f"{https}/m", tmp_path)
    assert [wanted for path, wanted in site.requests if path == "/m/model.safetensors"] == ["bytes=5000-", None]


def test_a_wrong_checksum_is_refused(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, contents(tiny_v1))
    config = site.files["/m/config.json"]
    site.files["/m/config.json"] = config.replace(b"512", b"513")
    with pytest.raises(FetchError, match=r"config\.json .* does not have the size and checksum"):
        fetch(f"{https}/m", tmp_path)
    assert not (tmp_path / "slipway-model.json").exists()


@pytest.mark.attack_class(21)
def test_names_that_lead_out_are_refused(https: str, site: Site, tmp_path: Path) -> None:
    offer(site, {"../evil.json": b"{}", "model.safetensors": b""})
    with pytest.raises(FetchError, match=r"'\.\./evil\.json' leads out"):
        fetch(f"{https}/m", tmp_path)


@pytest.mark.attack_class(3, 4)
def test_only_pickles_and_too_much_are_refused(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(FetchError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        fetch(f"{https}/m", tmp_path)
    offer(site, contents(tiny_v1))
    with pytest.raises(FetchError, match="the limit is 1000"):
        fetch(f"{https}/m", tmp_path, max_bytes=1000)


@pytest.mark.attack_class(21)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("/etc/x.json", "leads out"),
        ("a/../../x.json", "leads out"),
        ("a\\..\\x.json", "leads out"),
        ("a\0.json", "leads out"),
        ("a\n.json", "characters of control"),
        ("x" * 300 + ".json", "too long"),
        ("d/" * 600 + "x.json", "too long"),
        ("model.safetensors/x.json", "cannot be a file and a folder"),
    ],
)
def test_names_that_no_tool_writes_are_refused(
    https: str, site: Site, tmp_path: Path, name: str, sentence: str
) -> None:
    files = {"model.safetensors": b"x"}
    offer(site, files)
    site.files["/m/slipway-manifest.json"] = manifest_of(files | {name: b"{}"})
    site.files[f"/m/{name}"] = b"{}"
    with pytest.raises(UnusableError, match=sentence):
        fetch(f"{https}/m", tmp_path / "dest")
    assert {path.name for path in tmp_path.iterdir()} == {"dest"}


@pytest.mark.attack_class(21)
def test_a_marker_in_a_model_is_not_taken(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    """It would lead the server to another folder."""
    offer(site, contents(tiny_v1) | {"slipway-model.json": b'{"path": "/etc"}'})
    marker = fetch(f"{https}/m", tmp_path)
    assert "slipway-model.json" not in contents(Path(marker["path"]))


def test_one_file_under_two_names_is_refused(https: str, site: Site, tmp_path: Path) -> None:
    offer(site, {"model.safetensors": b"", "config.json": b"{}", "./config.json": b"{}"})
    with pytest.raises(UnusableError, match="which are one file"):
        fetch(f"{https}/m", tmp_path)


@pytest.mark.finding(20)
def test_a_manifest_pinned_by_its_digest(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    """Safety 20."""
    offer(site, contents(tiny_v1))
    digest = hashlib.sha256(site.files["/m/slipway-manifest.json"]).hexdigest()
    fetch(f"{https}/m", tmp_path / "a", f"sha256:{digest}")
    wrong = "0" * 64
    with pytest.raises(UnusableError, match=rf"has sha256:{digest}; spec\.model\.revision is sha256:{wrong}"):
        fetch(f"{https}/m", tmp_path / "b", f"sha256:{wrong}")


def test_a_file_that_changed_while_its_line_broke_is_begun_again(
    https: str, site: Site, tiny_v1: Path, tmp_path: Path
) -> None:
    """A server that sends another range than the requested one."""
    offer(site, contents(tiny_v1))
    site.cut = {"/m/model.safetensors": [100]}
    site.headers["/m/model.safetensors"] = {"Content-Range": "bytes 0-9/10"}
    assert contents(Path(fetch(f"{https}/m", tmp_path)["path"])) == contents(tiny_v1)
    ranges = [wanted for path, wanted in site.requests if path == "/m/model.safetensors"]
    assert ranges == [None, "bytes=100-", None]


@pytest.mark.parametrize("body", [b"[]", b'{"files": 3}', b'{"files": {"a": {}}}', b"[" * 100_000, b"\xff", b""])
def test_malformed_file_lists_are_refused(https: str, site: Site, tmp_path: Path, body: bytes) -> None:
    site.files["/m/slipway-manifest.json"] = body
    with pytest.raises(UnusableError, match="is not a list of files"):
        fetch(f"{https}/m", tmp_path)


def test_a_list_without_end_is_refused(https: str, site: Site, tmp_path: Path) -> None:
    listed = {f"{number}.json": {"size": 1, "sha256": "0"} for number in range(10_001)}
    site.files["/m/slipway-manifest.json"] = json.dumps({"files": listed}).encode()
    with pytest.raises(UnusableError, match="has 10001 files; at most 10000"):
        fetch(f"{https}/m", tmp_path)
