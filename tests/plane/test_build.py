"""How the crate is built: with which cargo, and what the wheel's tag says of the library."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipway_plane import NATIVE
from testkit import ROOT

SCRIPT = ROOT / "plane" / "build.py"
BUILD = runpy.run_path(str(SCRIPT))


def run_build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With nothing but these variables."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)


def test_without_a_cargo_one_line_says_so_and_nothing_fails_unless_it_is_required(tmp_path: Path) -> None:
    if list(Path("/").glob(BUILD["DEBIAN"])):
        pytest.skip("Debian's Rust is installed here, and found without a PATH")
    left_out = run_build("--to", str(tmp_path), PATH=str(tmp_path))
    assert (left_out.returncode, left_out.stdout.count("\n"), left_out.stderr) == (0, 1, "")
    assert "no cargo works here" in left_out.stdout
    assert run_build("--required", "--to", str(tmp_path), PATH=str(tmp_path)).returncode == 1
    assert not list(tmp_path.iterdir())


def test_a_cargo_that_fails_is_passed_over(tmp_path: Path) -> None:
    """As rustup's shim fails in a home without toolchains."""
    home, shim = tmp_path / ".cargo", tmp_path / ".cargo" / "bin" / "cargo"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'#!/bin/sh\n[ "$RUSTUP_HOME" = "{tmp_path}/.rustup" ] && [ "$CARGO_HOME" = "{home}" ]\n')
    shim.chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    code = f"import runpy; cargo = runpy.run_path({str(SCRIPT)!r})['find_cargo'](); print(cargo.path)"
    path = f"{shim.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": path, "HOME": "/none"}, capture_output=True, text=True
    )
    assert ran.stdout.strip() == str(shim), ran.stderr


@pytest.mark.parametrize(
    ("symbols", "tag"),
    [(b"GLIBC_2.2.5 GLIBC_2.34 GLIBC_2.9", "manylinux_2_34_"), (b"GLIBC_2.28", "manylinux_2_28_"), (b"", "linux_")],
)
def test_the_tag_of_a_wheel_is_by_the_newest_symbol_that_the_library_needs(
    symbols: bytes, tag: str, tmp_path: Path
) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"\x7fELF" + symbols)
    assert BUILD["wheel_platform"](library).startswith(tag)


@pytest.mark.integration
@pytest.mark.timeout(900)  # it compiles the library and all that it depends on
@pytest.mark.skipif(NATIVE is None or not shutil.which("cargo"), reason="no cargo built the library here")
def test_an_empty_home_builds_the_library_too_and_it_is_small(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    built = run_build("--required", "--to", str(tmp_path / "to"), HOME=str(home), PATH=os.environ["PATH"])
    assert built.returncode == 0, built.stdout + built.stderr
    (library,) = (tmp_path / "to").iterdir()
    assert library.name == BUILD["LIBRARY"] and library.stat().st_size < 4 << 20
