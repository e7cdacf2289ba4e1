"""Compiles the engine's C kernels and the gateway's data plane into the wheel: `pip install` of it needs no compiler.

Images set HATCH_BUILD_NO_HOOKS and copy libraries of their own. An editable installation has those of `make setup`.
"""

import os
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = "slipway_server/kernels/c"
PLANE = "slipway_plane"
WITHOUT_KERNELS = "SLIPWAY_WHEEL_WITHOUT_KERNELS"
WITHOUT_PLANE = "SLIPWAY_WHEEL_WITHOUT_PLANE"


class CustomBuildHook(BuildHookInterface[Any]):
    """hatchling finds it by this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises RuntimeError: no compiler, or none of the kernels or not the data plane compile."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="slipway-wheel-")
        folder = Path(self._folder.name)
        platforms = [*self._kernels(folder / "kernels", build_data), *self._plane(folder / "plane", build_data)]
        if platforms:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{max(platforms, key=_glibc)}"

    def _kernels(self, folder: Path, build_data: dict[str, Any]) -> list[str]:
        """Adds the kernels; returns the platform that they are for."""
        if os.environ.get(WITHOUT_KERNELS):
            return []
        build = runpy.run_path(str(Path(self.root, "server", KERNELS, "build.py")))
        if not build["wanted"]():
            self.app.display_info("no C kernels for this platform: torch computes the models there")
            return []
        if build["compiler"]() is None:
            raise RuntimeError(
                "no compiler for the C kernels: install ziglang or cc, "
                f"or set {WITHOUT_KERNELS}=1 for a wheel without them"
            )
        folder.mkdir()
        compiled = build["compile_all"](folder)
        if not compiled:
            raise RuntimeError(f"the C kernels do not compile; {WITHOUT_KERNELS}=1 makes a wheel without them")
        self.app.display_info(f"C kernels: {', '.join(path.stem for path in compiled)}")
        build_data["force_include"] |= {str(path): f"{KERNELS}/{path.name}" for path in compiled}
        return [build["wheel_platform"]()]

    def _plane(self, folder: Path, build_data: dict[str, Any]) -> list[str]:
        """Adds the data plane, where a cargo works; returns the platform that it is for."""
        if os.environ.get(WITHOUT_PLANE):
            return []
        build = runpy.run_path(str(Path(self.root, "plane", "build.py")))
        if (cargo := build["find_cargo"]()) is None:
            self.app.display_warning("no cargo works here: a wheel without the gateway's compiled data plane")
            return []
        library = build["build"](cargo, folder)
        build_data["force_include"][str(library)] = f"{PLANE}/{library.name}"
        return [build["wheel_platform"](library)]


def _glibc(platform: str) -> tuple[int, ...]:
    """The oldest glibc that `manylinux_2_31_x86_64` needs; `linux_x86_64` promises none, so it is above all."""
    kind, *numbers = platform.split("_")[:3]
    return tuple(map(int, numbers)) if kind == "manylinux" else (99,)
