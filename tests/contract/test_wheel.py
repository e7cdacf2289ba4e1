"""The wheel that `make wheel` builds has the engine's kernels and the data plane in it, and they run from there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from platform import machine

import pytest

from slipway_plane import NATIVE
from slipway_server.kernels.c import build
from slipway_server.kernels.c.library import usable_flags
from testkit import ROOT

# The crate is compiled here, on a machine where other tests compute.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

LOAD = "from slipway_server.kernels.c import library as here; print(here.__file__, here.library(1).instruction_set)"


def build_wheel(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=900)


@pytest.mark.skipif(not build.wanted(), reason="no C kernels for this platform")
def test_wheel_has_the_kernels_of_its_platform_and_they_load_from_it(tmp_path: Path) -> None:
    made = build_wheel(tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.stem and wheel.stem.endswith(machine())
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(installed)
    libraries = {Path(name).name for name in names if name.endswith(".so")}
    plane = {"_native.abi3.so"} if NATIVE is not None else set()
    assert libraries == {each.file_name for each in build.wanted()} | plane
    assert not [name for name in names if name.startswith("tests/")]

    if any(each.needs <= usable_flags() for each in build.wanted()):
        ran = subprocess.run(
            [sys.executable, "-c", LOAD],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(installed), "SLIPWAY_KERNELS": "native"},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert ran.stdout.startswith(str(installed)), ran.stderr
    else:
        pytest.skip("this CPU runs none of the C kernels: they are in the wheel, and were not loaded")


@pytest.mark.skipif(NATIVE is None, reason="no cargo built the data plane here")
def test_wheel_has_the_data_plane_for_the_glibc_that_it_needs(tmp_path: Path) -> None:
    made = build_wheel(tmp_path, SLIPWAY_WHEEL_WITHOUT_KERNELS="1")
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-manylinux_2_" in wheel.stem
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    code = "import slipway_plane as plane; print(plane.__file__, plane.NATIVE.version())"
    environment = {"PYTHONPATH": str(installed), "PATH": os.environ["PATH"]}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.stdout.startswith(str(installed)), ran.stderr


def test_wheel_without_libraries_is_for_any_platform(tmp_path: Path) -> None:
    made = build_wheel(tmp_path, SLIPWAY_WHEEL_WITHOUT_KERNELS="1", SLIPWAY_WHEEL_WITHOUT_PLANE="1")
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stem.endswith("-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.skipif(not build.wanted(), reason="no C kernels for this platform")
def test_wheel_is_not_built_without_a_compiler_in_silence(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'ziglang' else find(name, *rest)\n"
    )
    made = build_wheel(tmp_path / "dist", PYTHONPATH=str(site), PATH="", CC="")
    assert made.returncode != 0
    assert "no compiler for the C kernels" in made.stdout + made.stderr
    assert not list(tmp_path.glob("dist/*.whl"))
