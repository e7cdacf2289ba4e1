"""Every pod of a revision loads the same bytes, or fails with the reason."""

import json
import os
from pathlib import Path

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher import pin
from slipway_fetcher.folder import UnusableError
from tests.fetcher.site import LIMIT, Site, contents, hub_fetch, offer, offer_repository, run

FIRST, SECOND = "a" * 40, "b" * 40
PINNED = "; the revision is pinned to "


def pin_of(words: str, path: Path) -> Path:
    """As the operator writes it of what the first pod reports."""
    report = json.loads(words)["weights"]
    path.write_text(json.dumps({"digest": report["digest"], "commit": report["commit"]}))
    return path


def moved(tiny_v1: Path) -> dict[str, bytes]:
    files = contents(tiny_v1)
    return files | {"config.json": files["config.json"] + b"\n"}


@pytest.mark.finding(20)
def test_a_branch_that_moves_moves_no_revision(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    """Safety 20: each pod resolved the branch by itself, so one revision served two commits."""
    offer_repository(site, contents(tiny_v1), FIRST)
    code, words = hub_fetch(site, tmp_path / "first", "hf://org/tiny")
    kept = pin_of(words, tmp_path / "pin.json")
    offer_repository(site, moved(tiny_v1), SECOND)
    site.requests.clear()
    code, words = hub_fetch(site, tmp_path / "later", "hf://org/tiny", SLIPWAY_PIN_FILE=str(kept))
    report = json.loads(words)["weights"]
    assert (code, report["commit"], report["pinned"]) == (0, FIRST, True)
    assert report["digest"] == json.loads(kept.read_text())["digest"]
    assert not any(SECOND in path or path.endswith("/main") for path, _ in site.requests)
    _, words = hub_fetch(site, tmp_path / "unpinned", "hf://org/tiny")
    assert json.loads(words)["weights"]["commit"] == SECOND


def test_a_missing_commit_is_reported(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer_repository(site, contents(tiny_v1), FIRST)
    _, words = hub_fetch(site, tmp_path / "first", "hf://org/tiny")
    kept = pin_of(words, tmp_path / "pin.json")
    site.files.clear()
    offer_repository(site, moved(tiny_v1), SECOND)
    code, words = hub_fetch(site, tmp_path / "later", "hf://org/tiny", "--pin-file", str(kept))
    assert code == os.EX_NOINPUT
    assert f"cannot be fetched at commit {FIRST}, which the revision is pinned to: " in words


def test_a_commit_with_other_bytes_fails_with_both_digests(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer_repository(site, contents(tiny_v1), FIRST)
    _, words = hub_fetch(site, tmp_path / "first", "hf://org/tiny")
    before = json.loads(words)["weights"]["digest"]
    kept = pin_of(words, tmp_path / "pin.json")
    offer_repository(site, moved(tiny_v1), FIRST)
    code, words = hub_fetch(site, tmp_path / "later", "hf://org/tiny", "--pin-file", str(kept))
    assert code == os.EX_DATAERR
    assert words.startswith(f"hf://org/tiny at commit {FIRST} has sha256:") and words.endswith(f"{PINNED}{before}.")
    assert words.count("sha256:") == 2
    assert not (tmp_path / "later" / "slipway-model.json").exists()


def test_a_web_folder_that_changed(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, contents(tiny_v1))
    hosts = ["--allow-host", "localhost"]
    code, words, _ = run(tmp_path / "first", f"{https}/m", *hosts)
    kept = pin_of(words, tmp_path / "pin.json")
    assert run(tmp_path / "second", f"{https}/m", *hosts, "--pin-file", str(kept))[0] == code == 0
    offer(site, moved(tiny_v1))
    code, words, _ = run(tmp_path / "later", f"{https}/m", *hosts, "--pin-file", str(kept))
    assert code == os.EX_DATAERR and PINNED in words


def test_a_claim_that_changed(tiny_v1: Path, tmp_path: Path) -> None:
    mount = tmp_path / "pvc"
    (mount / "m").mkdir(parents=True)
    for name, body in contents(tiny_v1).items():
        (mount / "m" / name).write_bytes(body)

    sources = fetcher.Sources(pvc_mount=mount)

    def fetch(dest: str, kept: Path | None = None) -> pin.Report:
        return fetcher.fetch(
            "pvc://claim/m", "", tmp_path / dest, max_bytes=LIMIT, sources=sources, pin_file=kept
        )  # fmt: skip

    first = fetch("first")
    kept = pin_of(first.text(), tmp_path / "pin.json")
    assert fetch("second", kept).pinned
    config = mount / "m" / "config.json"
    config.write_bytes(config.read_bytes() + b"\n")
    with pytest.raises(UnusableError, match=rf"pvc://claim/m has sha256:\w+{PINNED}{first.digest}\."):
        fetch("later", kept)


def test_a_pod_with_other_bytes_than_the_pin_fetches_again(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    """Its node was restarted: the marker of its own finished download is no reason to keep it."""
    offer_repository(site, contents(tiny_v1), FIRST)
    _, words = hub_fetch(site, tmp_path / "first", "hf://org/tiny")
    kept = pin_of(words, tmp_path / "pin.json")
    offer_repository(site, moved(tiny_v1), SECOND)
    assert hub_fetch(site, tmp_path / "other", "hf://org/tiny")[0] == 0
    code, words = hub_fetch(site, tmp_path / "other", "hf://org/tiny", "--pin-file", str(kept))
    assert code == 0 and json.loads(words)["weights"]["commit"] == FIRST
    before = len(site.requests)
    code, again = hub_fetch(site, tmp_path / "other", "hf://org/tiny", "--pin-file", str(kept))
    assert (code, again, len(site.requests)) == (0, words, before), "a finished download was repeated"


def test_without_a_pin_file_nothing_is_pinned(tmp_path: Path) -> None:
    assert pin.read(None) is None and pin.read(tmp_path / "none") is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"digest": "sha256:12"}', '{"digest": 3}', '{"digest": "sha256:%s", "commit": "../x"}']
)
def test_a_malformed_pin_is_refused(tmp_path: Path, content: str) -> None:
    """Better no pod than one that is held to nothing."""
    (tmp_path / "pin.json").write_text(content.replace("%s", "0" * 64))
    with pytest.raises(UnusableError, match="is not what the operator writes"):
        pin.read(tmp_path / "pin.json")


def test_the_report_fits_into_a_termination_message() -> None:
    report = pin.Report("sha256:" + "0" * 64, "c" * 64, 10_000, 2**60, True)
    assert len(report.text()) < 4096
