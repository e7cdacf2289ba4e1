"""Component images, kind's sources, the project's images and the torch set: the parts that need no engine."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.images.archive import Image, write_archive
from devcluster.images.components import component_images, parse_kind_sources
from devcluster.images.project import (
    ENGINES,
    OPERATOR,
    PLANE,
    SERVER,
    ProjectImage,
    build_mounts,
    content,
    has_plane,
    reference,
    uv_cache,
)
from devcluster.images.pullable import full_name
from devcluster.images.torchset import remove_files_for_a_gpu, torch_requirements
from devcluster.places import REPOSITORY

STORAGE = """
const storageProvisionerImage = "example.test/provisioner:v1"
const storageHelperImage = "example.test/helper:v2"
const defaultStorageManifest = `
image: ` + storageProvisionerImage + `
helper: ` + storageHelperImage + `
`
"""
CONTAINERD = 'sandbox_image = "example.test/pause:3"'


def test_kinds_go_constants_are_read() -> None:
    kind = parse_kind_sources(STORAGE, CONTAINERD)
    assert kind.storage_manifest.strip() == "image: example.test/provisioner:v1\nhelper: example.test/helper:v2"
    assert (kind.pause_tag, kind.helper_tag) == ("example.test/pause:3", "example.test/helper:v2")


def test_changed_sources_of_kind_are_an_error() -> None:
    with pytest.raises(DevclusterError, match="kind's pin"):
        parse_kind_sources(STORAGE.replace("+ storageHelperImage +", "+ other +"), CONTAINERD)
    with pytest.raises(DevclusterError, match="sandbox_image"):
        parse_kind_sources(STORAGE, "")


def test_each_wanted_image_gets_its_binary() -> None:
    names = ("kube-apiserver", "kube-proxy", "coredns", "local-path-provisioner")
    binaries = {name: Path(f"/bin/{name}") for name in names}
    tags = ["r.test/kube-apiserver:v1", "r.test/kube-proxy:v1", "r.test/coredns/coredns:v2", "r.test/pause:9"]
    kind = parse_kind_sources(STORAGE, CONTAINERD)
    images = {image.tag: image for image in component_images(tags, kind, binaries, Path("/pause"), Path("/proxy.tar"))}
    assert images["r.test/kube-apiserver:v1"].base is None
    assert images["r.test/kube-proxy:v1"].base == Path("/proxy.tar")
    assert images["r.test/coredns/coredns:v2"].entrypoint == ("/coredns",)
    assert "r.test/pause:9" not in images and images["example.test/pause:3"].entrypoint == ("/pause", "-P")


def test_an_unknown_component_is_an_error_not_a_missing_image() -> None:
    kind = parse_kind_sources(STORAGE, CONTAINERD)
    with pytest.raises(DevclusterError, match="does not build"):
        component_images(["r.test/novelty:v1"], kind, {"local-path-provisioner": Path("/x")}, Path("/p"), Path("/b"))


@pytest.mark.parametrize("image", ENGINES.values(), ids=lambda image: image.name)
def test_a_change_of_what_an_engines_image_copies_changes_its_tag(image: ProjectImage) -> None:
    """What its Dockerfile copies from the tree is among the files that its tag is a key of."""
    dockerfile = (REPOSITORY / image.dockerfile).read_text()
    copied = {line.split()[1] for line in dockerfile.splitlines() if line.startswith("COPY ") and "--from" not in line}
    assert copied == set(image.sources)
    assert all((REPOSITORY / name).exists() for name in copied)


def test_an_archive_has_the_layers_of_its_manifest(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"#!binary")
    target = tmp_path / "image.tar"
    write_archive(Image("r.test/x:1", (("/usr/local/bin/x", program),), entrypoint=("/x",)), target, "x86_64")
    with tarfile.open(target) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config = json.load(archive.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        with tarfile.open(fileobj=archive.extractfile(manifest["Layers"][0])) as layer:
            entry = layer.getmember("usr/local/bin/x")
    assert manifest["RepoTags"] == ["r.test/x:1"] and config["architecture"] == "amd64"
    assert entry.mode == 0o755 and entry.uid == 0 and entry.size == len(b"#!binary")


def test_content_leaves_out_what_is_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "a/__pycache__").mkdir(parents=True)
    (tmp_path / "a/x.py").write_text("x")
    (tmp_path / "a/x.so").write_text("z")
    (tmp_path / "a/__pycache__/x.pyc").write_text("y")
    assert content(tmp_path, ("a", "absent")) == {"a/x.py": b"x"}


def test_a_tag_depends_on_base_and_torch_and_is_never_latest() -> None:
    tags = {reference(SERVER, base, torch) for base in ("a", "b") for torch in ("mount", "layer")}
    assert len(tags) == 4 and all(":dev-" in tag for tag in tags)
    assert reference(OPERATOR, "a", "mount").startswith("localhost/slipway-operator:dev-")


def test_only_a_data_plane_that_is_newer_than_its_sources_goes_into_an_image(tmp_path: Path) -> None:
    """A library of other sources would fail in the gateway, and not where it was made."""
    library, source = tmp_path / PLANE, tmp_path / "plane/src/lib.rs"
    for number, file in enumerate((tmp_path / "plane/Cargo.toml", tmp_path / "plane/Cargo.lock", source, library)):
        assert not has_plane(tmp_path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (number, number))
    assert has_plane(tmp_path)
    os.utime(source, (9, 9))
    assert not has_plane(tmp_path)


def test_build_mounts_only_what_is_there(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.touch()
    mounts = build_mounts({"SSL_CERT_FILE": str(bundle)}, tmp_path)
    assert mounts[0] == f"{bundle}:/etc/ssl/certs/ca-certificates.crt:ro"
    assert not any(str(tmp_path / ".config") in mount for mount in mounts)
    assert not any("ca-certificates" in mount for mount in build_mounts({}, tmp_path))


def test_images_take_what_uv_downloaded_for_the_virtual_environment() -> None:
    home = Path("/home/one")
    assert uv_cache({}, home) == home / ".cache/uv"
    assert uv_cache({"XDG_CACHE_HOME": "/cache"}, home) == Path("/cache/uv")
    assert uv_cache({"XDG_CACHE_HOME": "/cache", "UV_CACHE_DIR": "/elsewhere"}, home) == Path("/elsewhere")


def test_podman_wants_the_registry_spelled_out() -> None:
    assert full_name("python:3.11", "docker") == "python:3.11"
    assert full_name("python:3.11", "podman").endswith("/library/python:3.11")
    assert full_name("kindest/node:v1", "podman").endswith("/kindest/node:v1")


def test_what_the_loader_wants_stays_and_what_only_a_gpu_opens_goes(tmp_path: Path) -> None:
    kept = ("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/nvshmem/lib/libnvshmem_host.so.3", "torch/lib/libtorch_cuda.so")
    gone = ("nvidia/cudnn/lib/libcudnn_ops.so.9", "nvidia/nvshmem/lib/libnvshmem_device_sm_90.bc",
            "nvidia/nvshmem/lib/nvshmem_transport_ibrc.so.6", "nvidia/cu13/lib/libnvperf_host.so")  # fmt: skip
    for name in (*kept, *gone):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    remove_files_for_a_gpu(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)


def test_torch_and_what_it_loads_on_a_cpu_are_picked_from_the_lock() -> None:
    exported = (
        "aiohttp==3.14.5 \\\n    --hash=sha256:aa\n    # via slipway\n"
        "nvidia-cublas==13.1 ; sys_platform == 'linux' \\\n    --hash=sha256:bb\n    # via torch\n"
        "torch==2.15.0 \\\n    --hash=sha256:cc\n    --hash=sha256:dd\n"
        "nvidia-cusolver==12.2 \\\n    --hash=sha256:ff\n    # via torch\n"
        "triton==3.9.0 \\\n    --hash=sha256:gg\n    # via torch\n"
        "torchlike==1.0 \\\n    --hash=sha256:ee\n"
    )
    picked = torch_requirements(exported)
    assert "torch==2.15.0" in picked and "nvidia-cublas" in picked and "sha256:dd" in picked
    assert "aiohttp" not in picked and "torchlike" not in picked
    assert "triton==" not in picked and "cusolver" not in picked, "nothing loads these without a GPU"
