"""The images that a node starts with: which, from what, under which names (pure, but for reading kind's sources)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.images.archive import Image


@dataclass(frozen=True, slots=True)
class KindSources:
    """From kind's own source: read from its module, so that names and manifests are never copied here."""

    storage_manifest: str
    provisioner_tag: str
    helper_tag: str
    pause_tag: str


def read_kind_sources(module: Path) -> KindSources:
    """From the unpacked module of kind."""
    storage = (module / "pkg/build/nodeimage/const_storage.go").read_text()
    containerd = (module / "images/base/files/etc/containerd/config.toml").read_text()
    return parse_kind_sources(storage, containerd)


def parse_kind_sources(storage: str, containerd: str) -> KindSources:
    """The Go constants of the default storage and the sandbox image of containerd's configuration."""
    provisioner = _only(r'storageProvisionerImage = "([^"]+)"', storage)
    helper = _only(r'storageHelperImage = "([^"]+)"', storage)
    manifest = _only(r"(?s)const defaultStorageManifest = `(.*)`", storage)
    for constant, tag in (("storageProvisionerImage", provisioner), ("storageHelperImage", helper)):
        manifest = manifest.replace(f"` + {constant} + `", tag)
    if "`" in manifest:
        raise DevclusterError("kind's storage manifest has a new form: look at images/components.py and kind's pin.")
    return KindSources(manifest, provisioner, helper, _only(r'sandbox_image = "([^"]+)"', containerd))


def component_images(
    tags: list[str], kind: KindSources, binaries: dict[str, Path], pause: Path, proxy_base: Path
) -> list[Image]:
    """All images of the node; `tags` is what kubeadm wants to find."""
    images = [_control_plane_image(tag, binaries, proxy_base) for tag in tags if not _named(tag, "pause")]
    provisioner = binaries["local-path-provisioner"]
    return [
        *images,
        Image(kind.pause_tag, (("/pause", pause),), entrypoint=("/pause", "-P")),
        Image(kind.provisioner_tag, (("/usr/local/bin/local-path-provisioner", provisioner),)),
        Image(kind.helper_tag, base=proxy_base),
    ]


def _control_plane_image(tag: str, binaries: dict[str, Path], proxy_base: Path) -> Image:
    name = tag.rsplit("/", 1)[-1].split(":")[0]
    if name not in binaries:
        raise DevclusterError(f"kubeadm needs the image {tag}, which devcluster does not build.")
    if name == "coredns":
        return Image(tag, (("/coredns", binaries[name]),), entrypoint=("/coredns",))
    base = proxy_base if name == "kube-proxy" else None  # it calls nft and iptables
    return Image(tag, ((f"/usr/local/bin/{name}", binaries[name]),), base=base)


def _named(tag: str, name: str) -> bool:
    return tag.rsplit("/", 1)[-1].startswith(f"{name}:")


def _only(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise DevclusterError(f"kind's sources have no {pattern}: look at images/components.py and the pin of kind.")
    return found.group(1)
