"""One download for all pods of a cache: what is requested from the source, and what is not."""

import json
from pathlib import Path

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher.cache.locks import CacheError
from slipway_fetcher.cached import CacheUse, ModelSource
from slipway_fetcher.folder import UnusableError
from slipway_fetcher.objects import listing
from slipway_fetcher.objects.access import StoreAccess
from tests.fetcher.cache.pods import models, offer_model, take, weights_requests
from tests.fetcher.site import HERE, LIMIT, Site, archive, contents, offer, running_site
from tests.fetcher.test_objects import KEYS, offer_objects


def test_a_second_pod_of_the_revision_requests_nothing(site: Site, tmp_path: Path) -> None:
    offer_model(site)
    first = take(site, tmp_path / "pod1", tmp_path / "cache")
    site.requests.clear()
    second = take(site, tmp_path / "pod2", tmp_path / "cache")
    assert (first.cached, second.cached) == (False, True) and not site.requests
    assert first.digest == second.digest and json.loads(second.text())["weights"]["cached"] is True
    marker = json.loads((tmp_path / "pod2" / "slipway-model.json").read_bytes())
    assert marker["path"] == str(tmp_path / "cache" / "models" / first.digest[7:] / "files")
    assert (tmp_path / "pod2" / "current" / "model.gguf").read_bytes().startswith(b"GGUF")


def test_a_pinned_pod_needs_no_source(tmp_path: Path) -> None:
    with running_site() as site:
        offer_model(site)
        digest = take(site, tmp_path / "pod1", tmp_path / "cache").digest
    pin = tmp_path / "pin.json"
    pin.write_text(json.dumps({"digest": digest}))
    report = take(site, tmp_path / "pod2", tmp_path / "cache", scope="v2", pin=pin)
    assert report.cached and report.pinned


def test_another_revision_of_the_same_commit_needs_one_request_to_the_hub(site: Site, tmp_path: Path) -> None:
    offer_model(site)
    take(site, tmp_path / "pod1", tmp_path / "cache")
    site.requests.clear()
    assert take(site, tmp_path / "pod2", tmp_path / "cache", scope="v2").cached
    assert [path for path, _ in site.requests] == ["/api/models/org/tiny/revision/main"]


def test_a_branch_that_moved_is_another_model(site: Site, tmp_path: Path) -> None:
    offer_model(site)
    first = take(site, tmp_path / "pod1", tmp_path / "cache")
    offer_model(site, b"GGUF other", "b" * 40)
    assert take(site, tmp_path / "pod2", tmp_path / "cache").digest == first.digest, "a revision keeps its bytes"
    moved = take(site, tmp_path / "pod3", tmp_path / "cache", scope="v2")
    assert not moved.cached and moved.digest != first.digest
    assert len(models(tmp_path / "cache")) == 2


def test_equal_bytes_of_two_sources_are_kept_once(https: str, site: Site, tmp_path: Path) -> None:
    files = {"model.gguf": b"GGUF", "config.json": b"{}"}
    offer(site, files)
    site.files["/m.tar"] = archive(files)
    sources = fetcher.Sources(HERE, formats=fetcher.folder.ANY_ENGINE)
    for number, uri in enumerate((f"{https}/m", f"{https}/m.tar", f"{https}/m")):
        use = CacheUse(tmp_path / "cache", f"v{number}")
        report = fetcher.fetch(uri, "", tmp_path / str(number), max_bytes=LIMIT, sources=sources, use=use)
        assert report.cached is (number == 2), "a manifest is a version, an archive has none"
    assert len(models(tmp_path / "cache")) == 1


def test_an_object_store_is_listed_and_not_read(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer_objects(site, "bucket", contents(tiny_v1))
    sources = fetcher.Sources(HERE, store=StoreAccess(https, variables=KEYS))
    for number in range(2):
        site.requests.clear()
        use = CacheUse(tmp_path / "cache", f"v{number}")
        report = fetcher.fetch(
            "s3://bucket/chat", "", tmp_path / str(number), max_bytes=LIMIT, sources=sources, use=use
        )
        assert report.cached is bool(number)
    assert not any("/chat/" in path for path, _ in site.requests)


def test_a_store_without_etags_has_no_version() -> None:
    stored = listing.StoredObject("chat/a", 1, "e")
    assert listing.version(listing.Objects({"a": stored}, [])) != ""
    assert listing.version(listing.Objects({"a": listing.StoredObject("chat/a", 1, "")}, [])) == ""


@pytest.mark.parametrize(
    ("uri", "revision", "fixed"),
    [
        ("hf://org/tiny", "c" * 40, "c" * 40),
        ("hf://org/tiny", "main", None),
        ("oci://host/name:v1", "", None),
        (f"oci://host/name@sha256:{'d' * 64}", "", "d" * 64),
        ("https://host/m", f"sha256:{'e' * 64}", "e" * 64),
        ("https://host/m", "", None),
    ],
)
def test_versions_that_never_change(uri: str, revision: str, fixed: str | None) -> None:
    assert ModelSource(uri, revision).fixed_version == fixed


def test_digests_that_never_change() -> None:
    digest = "sha256:" + "1" * 64
    assert ModelSource("s3://bucket/chat", digest).fixed_digest == digest
    assert ModelSource("https://host/m", digest).fixed_digest is None, "it is the digest of the manifest"


def test_models_of_other_formats_are_other_sources() -> None:
    one, other = ModelSource("hf://org/tiny", "", (".gguf",)), ModelSource("hf://org/tiny", "", (".safetensors",))
    assert one.name() != other.name() and one.version_name("c") != other.version_name("c")


def test_an_unusable_model_is_not_published(site: Site, tmp_path: Path) -> None:
    offer_model(site)
    pin = tmp_path / "pin.json"
    pin.write_text(json.dumps({"digest": "sha256:" + "0" * 64}))
    with pytest.raises(UnusableError, match="the revision is pinned to"):
        take(site, tmp_path / "pod", tmp_path / "cache", pin=pin)
    assert models(tmp_path / "cache") == []


def test_a_folder_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheError, match="The model cache cannot be written"):
        take(site, tmp_path / "pod", tmp_path / "cache")


def test_sources_that_lie_in_the_pod_need_no_cache(tiny_v1: Path, tmp_path: Path) -> None:
    use = CacheUse(tmp_path / "cache")
    report = fetcher.fetch(f"file://{tiny_v1}", "", tmp_path / "dest", max_bytes=LIMIT, use=use)
    assert report.cached is None and not (tmp_path / "cache").exists()


def test_files_of_the_cache_are_readable_for_all_and_writable_for_none(site: Site, tmp_path: Path) -> None:
    offer_model(site)
    digest = take(site, tmp_path / "pod", tmp_path / "cache").digest
    files = tmp_path / "cache" / "models" / digest[7:] / "files"
    assert oct(files.stat().st_mode)[-3:] == "755"
    assert {oct(path.stat().st_mode)[-3:] for path in files.iterdir()} == {"444"}
    assert weights_requests(site) == 1
