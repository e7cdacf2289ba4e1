"""Compiles the engine's C kernels into the wheel: `pip install` of it needs no compiler.

Images set HATCH_BUILD_NO_HOOKS and copy kernels of their own. An editable installation has those of `make setup`.
"""

import os
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "slipway_server/kernels/c"
WITHOUT = "SLIPWAY_WHEEL_WITHOUT_KERNELS"


class CustomBuildHook(BuildHookInterface[Any]):
    """hatchling finds it by this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises RuntimeError: no compiler, or none of the kernels compile."""
        if version == "editable" or os.environ.get(WITHOUT):
            return
        build = runpy.run_path(str(Path(self.root, "server", FOLDER, "build.py")))
        if not build["wanted"]():
            self.app.display_info("no C kernels for this platform: torch computes the models there")
            return
        if build["compiler"]() is None:
            raise RuntimeError(
                f"no compiler for the C kernels: install ziglang or cc, or set {WITHOUT}=1 for a wheel without them"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="slipway-kernels-")
        made = build["compile_all"](Path(self._folder.name))
        if not made:
            raise RuntimeError(f"the C kernels do not compile; {WITHOUT}=1 makes a wheel without them")
        self.app.display_info(f"C kernels: {', '.join(path.stem for path in made)}")
        build_data["force_include"] |= {str(path): f"{FOLDER}/{path.name}" for path in made}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{build['wheel_platform']()}"
