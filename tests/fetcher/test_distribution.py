"""oci:// from a real registry: distribution, which most registries are built on. `test_oci.py` has the rest."""

import base64
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher.folder import FetchError
from slipway_fetcher.oci import manifest
from slipway_fetcher.oci.registry import RegistryAccess
from tests.fetcher.site import HERE, LIMIT, contents
from tests.fetcher.test_oci import RAW, TAR, tarred
from tests.support.stores.distribution import PASSWORD, USER, Distribution, distribution

pytestmark = [
    pytest.mark.extended,
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="distribution comes from Debian's package"),
]


@pytest.fixture(scope="module", params=[False, True], ids=["open", "with credentials"])
def registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distribution]:
    with distribution(tmp_path_factory.mktemp("registry"), secured=request.param) as served:
        yield served


def fetch(registry: Distribution, uri: str, dest: Path, password: str = PASSWORD, **more: Any) -> dict[str, Any]:
    here = f"127.0.0.1:{registry.port}"
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    config = json.dumps({"auths": {here: {"auth": auth}}}) if registry.secured and password else ""
    sources = fetcher.Sources(HERE, registry=RegistryAccess(config))
    fetcher.fetch(f"oci://{here}/{uri}", "", dest, max_bytes=LIMIT, sources=sources, **more)
    marker: dict[str, Any] = json.loads((dest / "slipway-model.json").read_bytes())
    return marker


def artefact(registry: Distribution, repository: str, files: dict[str, bytes]) -> str:
    layers = [registry.layer(repository, body, RAW, **{manifest.TITLE: name}) for name, body in files.items()]
    return registry.push(repository, "v1", layers)


def test_an_artefact_is_pulled_and_its_tag_moves_no_revision(
    registry: Distribution, tiny_v1: Path, tmp_path: Path
) -> None:
    digest = artefact(registry, "org/tiny", contents(tiny_v1))
    first = fetch(registry, "org/tiny:v1", tmp_path / "first")
    assert contents(Path(first["path"])) == contents(tiny_v1)
    assert first["commit"] == digest.removeprefix("sha256:")
    pin = tmp_path / "pin.json"
    pin.write_text(json.dumps({"digest": first["digest"], "commit": first["commit"]}))
    artefact(registry, "org/tiny", contents(tiny_v1) | {"README.md": b"another"})
    assert fetch(registry, "org/tiny:v1", tmp_path / "later", pin_file=pin)["digest"] == first["digest"]
    assert fetch(registry, "org/tiny:v1", tmp_path / "free")["digest"] != first["digest"]


def test_an_image_is_pulled(registry: Distribution, tiny_v1: Path, tmp_path: Path) -> None:
    files = {f"models/{name}": body for name, body in contents(tiny_v1).items()}
    layers = [
        registry.layer("org/car", tarred({"bin/sh": b"#!"}), TAR),
        registry.layer("org/car", gzip.compress(tarred(dict(files))), f"{TAR}+gzip"),
    ]
    registry.push("org/car", "v1", layers)
    assert contents(Path(fetch(registry, "org/car:v1", tmp_path)["path"])) == contents(tiny_v1)


def test_what_cannot_be_pulled_is_told_with_a_remedy(registry: Distribution, tiny_v1: Path, tmp_path: Path) -> None:
    artefact(registry, "org/tiny", contents(tiny_v1))
    with pytest.raises(FetchError, match="has no v9: correct the repository, the tag or the digest"):
        fetch(registry, "org/tiny:v9", tmp_path / "tag")
    if registry.secured:
        with pytest.raises(FetchError, match=r"it needs credentials, or is not there: name a Secret of the type"):
            fetch(registry, "org/tiny:v1", tmp_path / "anonymous", password="")
        with pytest.raises(FetchError, match="the credentials that were given may not pull it"):
            fetch(registry, "org/tiny:v1", tmp_path / "wrong", password="wrong")
