"""Controllers that are built from their pinned Go modules, and installed in the cluster where they are wanted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from devcluster.engine.engine import Engine, find
from devcluster.engine.facts import machine
from devcluster.gobuild import build_steps, drop_build_caches, module_folder, required_version
from devcluster.images.archive import Image, write_archive
from devcluster.node import access
from devcluster.pins import GoModule
from devcluster.places import Places, appears_whole, exclusive
from devcluster.processes import run
from devcluster.steps.progress import run_steps
from devcluster.steps.schedule import Step
from devcluster.tools import tool


@dataclass(frozen=True, slots=True)
class Addon:
    """One controller: an image with its program, and its own manifests with a few changes."""

    name: str  # of its image
    module: GoModule
    path: str  # of the Go module that has its manifests
    binary: str
    program: str  # path in the image
    manifests: str  # folder in the Go module
    kustomization: Callable[[str], str]  # from the image's name; the manifests are beside it under their folder's name
    apply: tuple[str, ...]  # more arguments of `kubectl apply`
    wait: tuple[str, ...]  # arguments of `kubectl wait`

    @property
    def reference(self) -> str:
        """The image's name in the cluster."""
        return f"localhost/slipway-{self.name}:{required_version(self.module, self.path)}"

    def install(self, places: Places, console: Console) -> None:
        """Build it where it is not built, load it, apply its manifests, and wait until it answers.

        Raises:
            DevclusterError: when there is no cluster, or it does not come to answer.
        """
        access.kubeconfig(places)
        with exclusive(places):
            engine, _ = find(places)
            run_steps([*self._steps(places), *self._cluster_steps(places, engine)], console)

    def folder(self, places: Places) -> Path:
        """Its manifests as they come; the Go module is downloaded where they are not there."""
        if not self._saved(places).exists():
            self._save_manifests(places)
        return self._saved(places)

    def _steps(self, places: Places) -> list[Step]:
        built = build_steps(places, (self.binary,))
        compiled = tuple(step.title for step in built)
        return [
            *built,
            Step(f"{self.name}'s own manifests", self._saved(places).exists, lambda: self._save_manifests(places),
                 after=compiled),
            # Manifests that were saved before wait for nothing, so this step waits for the compiler by itself.
            Step("remove build caches", lambda: False, lambda: drop_build_caches(places), after=compiled),
        ]  # fmt: skip

    def _cluster_steps(self, places: Places, engine: Engine) -> list[Step]:
        return [
            Step(f"load {self.reference}", lambda: self.reference in access.node_images(places, engine),
                 lambda: self._load(places, engine)),
            Step(f"install {self.name}", lambda: False, lambda: self._apply(places)),
        ]  # fmt: skip

    def _saved(self, places: Places) -> Path:
        return places.cache / f"{self.name}-files" / places.binaries(self.module).name

    def _save_manifests(self, places: Places) -> None:
        """They come with its module, so they are never copied here; the module cache goes afterwards."""
        module = module_folder(places, self.module, self.path, required_version(self.module, self.path))
        with appears_whole(self._saved(places)) as target:
            shutil.copytree(module / self.manifests, target, copy_function=shutil.copyfile)

    def _load(self, places: Places, engine: Engine) -> None:
        image = Image(self.reference, ((self.program, places.binary(self.binary)),), entrypoint=(self.program,))
        with appears_whole(places.work / f"{self.name}.tar") as archive:
            write_archive(image, archive, machine())
            access.load_archive(places, engine, archive)
            archive.unlink()

    def _apply(self, places: Places) -> None:
        kubectl: list[str | Path] = [tool(places, "kubectl"), "--kubeconfig", places.kubeconfig]
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self._saved(places), Path(folder) / Path(self.manifests).name)
            (Path(folder) / "kustomization.yaml").write_text(self.kustomization(self.reference))
            run([*kubectl, "apply", *self.apply, "-k", folder])
        run([*kubectl, "wait", *self.wait])
