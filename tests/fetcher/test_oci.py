"""oci:// from a registry: artefacts with a file for each layer, and images with files below /models."""

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
from pathlib import Path
from typing import Any

import pytest

from slipway_fetcher import fetching as fetcher
from slipway_fetcher import transfer
from slipway_fetcher.folder import FetchError, UnusableError
from slipway_fetcher.guard import EgressRules, RefusedError
from slipway_fetcher.oci import manifest, reference
from slipway_fetcher.oci.registry import RegistryAccess
from slipway_process.model_folder.checkpoint import CheckpointError
from tests.fetcher.site import HERE, LIMIT, contents, run
from tests.support.registry import MANIFEST, RegistrySite, running_registry

RAW, TAR = "application/vnd.cncf.model.weight.v1.raw", "application/vnd.oci.image.layer.v1.tar"
MACHINE = manifest.architecture(platform.machine())


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfer, "BACKOFF_S", 0.01)
    with running_registry() as site:
        yield site


def tarred(files: dict[str, bytes | None], **links: str) -> bytes:
    """A tar; None is a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if body is None else tarfile.REGTYPE
            member.size = len(body or b"")
            tar.addfile(member, io.BytesIO(body or b""))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return buffer.getvalue()


def artefact(registry: RegistrySite, files: dict[str, bytes], tag: str = "v1", **named: Any) -> str:
    layers = [registry.layer(body, RAW, {manifest.TITLE: name}) for name, body in files.items()]
    return registry.push("org/tiny", tag, layers, **named)


def image(registry: RegistrySite, *layers: bytes, tag: str = "v1") -> str:
    kinds = [f"{TAR}+gzip" if layer[:2] == b"\x1f\x8b" else TAR for layer in layers]
    return registry.push(
        "org/tiny", tag, [registry.layer(body, kind) for body, kind in zip(layers, kinds, strict=True)]
    )


def fetch(registry: RegistrySite, dest: Path, tag: str = ":v1", **more: Any) -> dict[str, Any]:
    sources = fetcher.Sources(more.pop("rules", HERE), registry=RegistryAccess(more.pop("config", "")))
    uri = f"oci://127.0.0.1:{registry.port}/org/tiny{tag}"
    fetcher.fetch(uri, "", dest, max_bytes=more.pop("max_bytes", LIMIT), sources=sources, **more)
    marker: dict[str, Any] = json.loads((dest / "slipway-model.json").read_bytes())
    return marker


def test_an_artefact_has_a_layer_for_each_file(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    digest = artefact(registry, contents(tiny_v1) | {"modeling.py": b"import os"})
    marker = fetch(registry, tmp_path)
    assert contents(Path(marker["path"])) == contents(tiny_v1)
    assert (marker["commit"], marker["left_out"]) == (digest.removeprefix("sha256:"), ["modeling.py"])


def test_a_folder_of_an_artefact_is_a_tar(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    weights = {name: files.pop(name) for name in list(files) if name.endswith(".safetensors")}
    packed = gzip.compress(tarred({"./": None, **{f"./{name}": body for name, body in files.items()}}))
    registry.push("org/tiny", "v1", [
        *(registry.layer(body, RAW, {manifest.FILE_PATH: name}) for name, body in weights.items()),
        registry.layer(packed, f"{TAR}+gzip", {manifest.TITLE: "config", manifest.UNPACK: "true"}),
    ])  # fmt: skip
    assert contents(Path(fetch(registry, tmp_path)["path"])) == contents(tiny_v1)


@pytest.mark.parametrize("below", ["models/", "./models/", "models/tiny/"])
def test_an_image_has_its_files_below_models(registry: RegistrySite, tiny_v1: Path, tmp_path: Path, below: str) -> None:
    files = {f"{below}{name}": body for name, body in contents(tiny_v1).items()}
    base = tarred({"bin/sh": b"#!", "etc/passwd": b"root", "models": None}, **{"bin/bash": "/bin/sh"})
    stale = {f"{below}config.json": b"stale", f"{below}extra.json": b"{}"}
    image(registry, base, gzip.compress(tarred(stale)), tarred({**files, f"{below}.wh.extra.json": b""}))
    assert contents(Path(fetch(registry, tmp_path)["path"])) == contents(tiny_v1)


def test_an_index_has_one_for_each_machine(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    mine = artefact(registry, contents(tiny_v1), tag="mine")
    other = artefact(registry, {"README.md": b"other"}, tag="other")
    entries = [(other, "linux", "s390x"), (other, "windows", MACHINE), (mine, "linux", MACHINE)]
    index = registry.push_index("org/tiny", "v1", entries)
    assert fetch(registry, tmp_path)["commit"] == index.removeprefix("sha256:")
    registry.push_index("org/tiny", "v2", entries[:2])
    with pytest.raises(UnusableError, match=f"has nothing for linux/{MACHINE}"):
        fetch(registry, tmp_path / "v2", ":v2")


def test_a_tag_that_moves_moves_no_revision(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    first = artefact(registry, contents(tiny_v1))
    marker = fetch(registry, tmp_path / "first")
    kept = tmp_path / "pin.json"
    kept.write_text(json.dumps({"digest": marker["digest"], "commit": marker["commit"]}))
    artefact(registry, contents(tiny_v1) | {"README.md": b"another"})
    assert fetch(registry, tmp_path / "later", pin_file=kept)["digest"] == marker["digest"]
    assert fetch(registry, tmp_path / "free")["digest"] != marker["digest"]
    assert fetch(registry, tmp_path / "digest", f":v1@{first}")["digest"] == marker["digest"]


def test_the_process_reports_the_digest(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    digest = artefact(registry, contents(tiny_v1))
    registry.users = {"me": "canary"}
    config = {"DOCKER_AUTH_CONFIG": docker_config(registry, "me", "canary")}
    uri = f"oci://127.0.0.1:{registry.port}/org/tiny:v1"
    code, words, log = run(tmp_path / "dest", uri, "--allow-host", "127.0.0.1", **config)
    assert code == 0, words
    assert json.loads(words)["weights"]["commit"] == digest.removeprefix("sha256:")
    assert "canary" not in words + log


def docker_config(registry: RegistrySite, user: str, password: str) -> str:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    return json.dumps({"auths": {f"127.0.0.1:{registry.port}": {"auth": auth}}})


@pytest.mark.parametrize("scheme", ["bearer", "basic"])
def test_credentials(registry: RegistrySite, tiny_v1: Path, tmp_path: Path, scheme: str) -> None:
    artefact(registry, contents(tiny_v1))
    registry.users, registry.scheme = {"me": "word"}, scheme
    with pytest.raises(FetchError, match=r"it needs credentials, or is not there: name a Secret of the type"):
        fetch(registry, tmp_path / "a")
    with pytest.raises(FetchError, match="the credentials that were given may not pull it"):
        fetch(registry, tmp_path / "b", config=docker_config(registry, "me", "wrong"))
    fetch(registry, tmp_path / "c", config=docker_config(registry, "me", "word"))
    for config in ("{", "[]", json.dumps({"auths": {f"127.0.0.1:{registry.port}": {"auth": "%"}}})):
        with pytest.raises(FetchError, match="create it with `kubectl create secret docker-registry`"):
            fetch(registry, tmp_path / "d", config=config)


def test_a_token_that_ends_meanwhile_is_renewed(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    artefact(registry, contents(tiny_v1))
    registry.users, registry.token_uses = {}, 5
    registry.anonymous = True
    fetch(registry, tmp_path)
    assert registry.tokens >= 2
    assert set(registry.scopes) == {"repository:org/tiny:pull"}


@pytest.mark.attack_class(8)
def test_a_token_server_on_a_private_address_is_refused(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    artefact(registry, contents(tiny_v1))
    registry.users = {"me": "word"}
    for realm in (
        "https://10.1.2.3/token",
        "http://169.254.169.254/token",
        "https://[fd00:ec2::254]/",
        "file:///etc/x",
    ):
        registry.realm = realm
        with pytest.raises(RefusedError):
            fetch(registry, tmp_path, config=docker_config(registry, "me", "word"))


@pytest.mark.attack_class(8)
def test_blobs_on_a_private_address_are_refused(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    artefact(registry, contents(tiny_v1))
    registry.blobs_at = "http://10.1.2.3/blob"
    with pytest.raises(RefusedError, match="redirects where the fetcher does not go"):
        fetch(registry, tmp_path)
    with pytest.raises(RefusedError, match="a loopback address"):
        fetch(registry, tmp_path, rules=EgressRules())


@pytest.mark.attack_class(8)
def test_other_bytes_than_the_digest(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    digest = artefact(registry, contents(tiny_v1))
    weights = f"sha256:{hashlib.sha256(contents(tiny_v1)['model.safetensors']).hexdigest()}"
    registry.blobs[weights] = b"x" * len(registry.blobs[weights])
    with pytest.raises(UnusableError, match="does not have the size and checksum of its list"):
        fetch(registry, tmp_path)
    registry.manifests["org/tiny", digest] = (b"{}", MANIFEST)
    with pytest.raises(UnusableError, match=r"answers with the manifest sha256:"):
        fetch(registry, tmp_path, f"@{digest}")


def test_an_interrupted_blob_goes_on(registry: RegistrySite, tiny_v1: Path, tmp_path: Path) -> None:
    artefact(registry, contents(tiny_v1))
    registry.cut = [100_000, 100_000]
    assert contents(Path(fetch(registry, tmp_path)["path"])) == contents(tiny_v1)
    assert any(wanted and wanted != "bytes=0-" for wanted in registry.ranges)


@pytest.mark.attack_class(8)
@pytest.mark.parametrize(
    ("files", "links", "sentence"),
    [
        ({"models/../../x.json": b"{}"}, {}, "leads out"),
        ({"models/a\x01.json": b"{}"}, {}, "of control"),
        ({}, {"models/model.safetensors": "/etc/passwd"}, "links are refused"),
        ({"models/.wh...": b""}, {}, "leads out"),
        ({"models/.wh.": b""}, {}, "leads out"),
        ({"models/a/.wh...": b""}, {}, "leads out"),
        ({"models/../.wh.x": b""}, {}, "leads out"),
    ],
)
def test_hostile_layers(
    registry: RegistrySite, tmp_path: Path, files: dict[str, bytes | None], links: dict[str, str], sentence: str
) -> None:
    (tmp_path / "kept").write_text("here")
    image(registry, tarred(files, **links))
    with pytest.raises((FetchError, CheckpointError), match=sentence):
        fetch(registry, tmp_path / "dest")
    assert (tmp_path / "kept").exists() and not list(tmp_path.rglob("x.json"))


def test_a_file_over_a_folder_of_another_layer(registry: RegistrySite, tmp_path: Path) -> None:
    image(registry, tarred({"models/a.json/b.json": b"{}"}), tarred({"models/a.json": b"{}"}))
    with pytest.raises(FetchError, match=r"a\.json cannot be written"):
        fetch(registry, tmp_path)


@pytest.mark.attack_class(8)
def test_huge_claims(registry: RegistrySite, tmp_path: Path) -> None:
    layer = {**registry.layer(b"x", RAW, {manifest.TITLE: "model.safetensors"}), "size": 10**15}
    registry.push("org/tiny", "v1", [layer])
    with pytest.raises(UnusableError, match="has 1000000000000000 bytes; the limit is"):
        fetch(registry, tmp_path)
    image(registry, gzip.compress(tarred({"models/model.safetensors": bytes(10**6)})), tag="v2")
    with pytest.raises(UnusableError, match=r"unpacked, has \d+ bytes; the limit is"):
        fetch(registry, tmp_path, ":v2", max_bytes=10**5)


def test_mistakes_get_a_remedy(registry: RegistrySite, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"has no v9: correct the repository, the tag or the digest"):
        fetch(registry, tmp_path, ":v9")
    for uri in ("oci://h/r", "oci://h", "oci://h/R:v1", "oci://h/r@sha256:12"):
        with pytest.raises(FetchError, match="names no repository with a tag or a digest"):
            reference.read(uri)
    assert reference.read("oci://docker.io/busybox:1").name == "library/busybox"
    assert reference.read("oci://docker.io/org/m:1").address == "registry-1.docker.io"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[]", "not JSON"),
        (b"{}", "without a list"),
        (b'{"layers": []}', "has no layers"),
        (b'{"layers": [{"size": -1}]}', "without a size"),
        (b'{"layers": [{"size": 1, "digest": "md5:1"}]}', "not sha256"),
        (b'{"layers": [{"size": 1, "mediaType": "a.tar+zstd"}]}', "zstd"),
    ],
)
def test_malformed_manifests(body: bytes, sentence: str) -> None:
    with pytest.raises(UnusableError, match=sentence):
        manifest.read(body, "oci://h/r")


def test_a_failure_is_no_input(registry: RegistrySite, tmp_path: Path) -> None:
    uri = f"oci://127.0.0.1:{registry.port}/org/none:v1"
    code, words, _ = run(tmp_path / "dest", uri, "--allow-host", "127.0.0.1")
    assert code == os.EX_NOINPUT and "has no v1" in words
