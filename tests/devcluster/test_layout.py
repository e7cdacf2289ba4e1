"""Images on their way into a node: what stays in the layout, and what of it travels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from devcluster.engine.engine import Engine
from devcluster.images import layout

NAME = "org.opencontainers.image.ref.name"
IMAGES = {"op:1": ["base", "deps", "app1"], "op:2": ["base", "deps", "app2"], "srv:1": ["base", "torchless"]}


class Podman(Engine):
    """Writes what podman writes, and adds to what the folder has as podman does."""

    def run(self, *arguments: str | Path, stdin: str | None = None, timeout: float | None = None) -> str:
        *options, folder, reference = arguments
        assert options == ["save", "--uncompressed", "--format", "oci-dir", "-o"]
        write(Path(folder), str(reference))
        return ""


def write(folder: Path, reference: str) -> None:
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (folder / "oci-layout").write_text("{}")
    parts = [*IMAGES[reference], f"config-{reference}"]
    for part in parts:
        (blobs / part).write_text(part)
    *layers, config = [{"digest": f"sha256:{part}"} for part in parts]
    (blobs / f"manifest-{reference}").write_text(json.dumps({"config": config, "layers": layers}))
    path = folder / "index.json"
    index: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"manifests": []}
    others = [one for one in index["manifests"] if one["annotations"][NAME] != reference]
    entry = {"digest": f"sha256:manifest-{reference}", "annotations": {NAME: reference}}
    path.write_text(json.dumps({"manifests": [*others, entry]}))


def saved(folder: Path, *references: str) -> set[str]:
    layout.save(Podman("podman", own_store=True), list(references), folder)
    return {path.name for path in (folder / "blobs/sha256").iterdir()}


def test_what_two_versions_share_stays_and_the_former_goes(tmp_path: Path) -> None:
    saved(tmp_path, "op:1", "srv:1")
    shared = tmp_path / "blobs/sha256/base"
    there = saved(tmp_path, "op:2", "srv:1")
    assert {"app2", "torchless"} <= there and not {"app1", "manifest-op:1", "config-op:1"} & there
    assert shared.exists()
    index, *blobs = layout.files(tmp_path, present=set())[1:]
    assert index == "index.json" and {Path(blob).name for blob in blobs} == there and len(blobs) == len(there)


def test_only_what_the_node_lacks_travels(tmp_path: Path) -> None:
    saved(tmp_path, "op:2")
    found = layout.files(tmp_path, present={"sha256:base", "sha256:deps", "sha256:other"})
    assert found == [
        "oci-layout",
        "index.json",
        *(f"blobs/sha256/{n}" for n in ("manifest-op:2", "config-op:2", "app2")),
    ]


def test_interrupted_save_starts_again(tmp_path: Path) -> None:
    saved(tmp_path, "op:1")
    (tmp_path / "oci-put-blob123").write_text("half")
    (tmp_path / "index.json").write_text('{"manifests": [')
    assert "app2" not in saved(tmp_path, "op:1") and not (tmp_path / "oci-put-blob123").exists()
    (tmp_path / "blobs/sha256/deps").unlink()
    assert "deps" in saved(tmp_path, "op:1")
