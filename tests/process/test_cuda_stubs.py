"""Stubs of CUDA's libraries: real ELF files, which the machine's own loader and torch take for the libraries."""

import ctypes
import json
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from slipway_process import cuda_stubs, environment
from slipway_process.cuda_stubs import elf
from slipway_process.cuda_stubs.elf import Exports

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in elf.MACHINES,
    reason="stubs are made for Linux on x86-64 and aarch64",
)
VERSIONED = Exports({"first": 2, "second": 2, "third": 3}, {1: "libstub.so.1", 2: "STUB_1", 3: "STUB_2"})
UNVERSIONED = Exports({"first": 1, "second": 1}, {})


def stub(folder: Path, exports: Exports, name: str = "libstub.so.1") -> Path:
    file = folder / name
    file.write_bytes(elf.stub_of(exports, name))
    return file


@pytest.mark.parametrize(
    "exports", [VERSIONED, UNVERSIONED, Exports({}, {})], ids=["versions", "no versions", "nothing"]
)
def test_the_loader_takes_a_stub_and_its_functions_return_1(tmp_path: Path, exports: Exports) -> None:
    library = ctypes.CDLL(str(stub(tmp_path, exports)))
    assert [getattr(library, name)() for name in exports.functions] == [1] * len(exports.functions)
    with pytest.raises(AttributeError):
        library.fourth  # noqa: B018


def test_a_function_is_found_by_its_version_alone(tmp_path: Path) -> None:
    library, this = ctypes.CDLL(str(stub(tmp_path, VERSIONED))), ctypes.CDLL(None)
    this.dlvsym.restype = ctypes.c_void_p

    def found(name: bytes, version: bytes) -> bool:
        return bool(this.dlvsym(ctypes.c_void_p(library._handle), name, version))

    assert found(b"first", b"STUB_1")
    assert found(b"third", b"STUB_2")
    assert not found(b"first", b"STUB_2")
    assert not found(b"first", b"STUB_3")


def test_a_library_that_was_linked_with_another_loads_with_its_stub(tmp_path: Path) -> None:
    """As libtorch_cuda.so does: it names the file and the version of each function."""
    (tmp_path / "real.c").write_text("int first(void) { return 5; } int second(void) { return 6; }")
    (tmp_path / "user.c").write_text("int first(void); int second(void); int sum(void) { return first() + second(); }")
    (tmp_path / "map").write_text("STUB_1 { global: first; second; };")
    compiler = _compiler()
    versions = f"-Wl,--version-script={tmp_path / 'map'}"
    real = tmp_path / "libstub.so.1"
    _run(*compiler, "-shared", "-fPIC", "-o", real, tmp_path / "real.c", versions, "-Wl,-soname,libstub.so.1")
    _run(*compiler, "-shared", "-fPIC", "-o", tmp_path / "libuser.so", tmp_path / "user.c", real, "-Wl,-z,now")
    exports = elf.exports_of(real)
    assert set(exports.functions) == {"first", "second"}
    assert "STUB_1" in exports.versions.values()
    stub(tmp_path, exports)
    code = f"import ctypes; ctypes.CDLL({str(real)!r}); print(ctypes.CDLL({str(tmp_path / 'libuser.so')!r}).sum())"
    assert _run(sys.executable, "-c", code).strip() == "2"


def test_no_library_has_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "libstub.so"
    for content in (b"", b"\x7fELF", b"text" * 100, elf.stub_of(VERSIONED, "libstub.so")[:2000]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"libstub\.so is no ELF-64 library"):
            elf.exports_of(file)


def test_a_stub_lies_where_torch_looks_for_the_library(tmp_path: Path) -> None:
    site, other, to = tmp_path / "site", tmp_path / "other", tmp_path / "to"
    for folder in (site, other):
        (folder / "nvidia" / "cu13" / "lib").mkdir(parents=True)
        real = folder / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
        real.write_bytes(Path(_loaded("libc.so")).read_bytes())
    written = cuda_stubs.write_stubs([str(tmp_path / "missing"), str(site), str(other)], to)
    assert written == [to / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"]
    assert "printf" in elf.exports_of(site / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13").functions


IMPORT = """
    import json, sys
    from slipway_process import cuda_stubs
    paths = list(sys.path)
    with cuda_stubs.for_torch():
        import torch
    assert sys.path == paths
    maps = open("/proc/self/maps").read()
    libraries = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libcublasLt.so" in line}
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    dirty = sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("Private_Dirty"))
    numbers = [float(y.abs().sum()) for y in (x @ x, torch.linalg.inv(x), torch.fft.fft(x))]
    try:
        torch.zeros(1, device="cuda")
        cuda = "worked"
    except (RuntimeError, AssertionError) as error:
        cuda = str(error).splitlines()[0]
    print(json.dumps({"libraries": sorted(libraries), "numbers": numbers, "cuda": cuda, "dirty_mib": dirty / 1024}))
"""


@pytest.mark.integration
def test_torch_computes_the_same_with_stubs_and_takes_less_memory(tmp_path: Path) -> None:
    if cuda_stubs._has_driver():
        pytest.skip("there is an NVIDIA driver")
    if not any(list(Path(path).glob("nvidia/*/lib/libcublasLt.so.*")) for path in sys.path):
        pytest.skip("this torch has no libraries of CUDA")
    plain = _imported({environment.CUDA_STUBS: "off"})
    stubbed = _imported({})
    (tmp_path / "driver").mkdir()
    stub(tmp_path / "driver", Exports({"cuInit": 1}, {}), "libcuda.so.1")
    with_driver = _imported({"LD_LIBRARY_PATH": str(tmp_path / "driver")})
    assert stubbed["numbers"] == plain["numbers"]
    assert stubbed["cuda"] == plain["cuda"], "torch says itself that there is no driver"
    assert all("slipway-cuda-stubs-" in path for path in stubbed["libraries"]) and stubbed["libraries"]
    assert not any("slipway-cuda-stubs-" in path for path in plain["libraries"] + with_driver["libraries"])
    assert stubbed["dirty_mib"] < plain["dirty_mib"] - 80


@pytest.mark.integration
def test_without_a_folder_for_stubs_torch_is_imported_as_it_is() -> None:
    code = """
        import tempfile
        def no_folder(*_, **__):
            raise FileNotFoundError("no usable temporary directory")
        tempfile.mkdtemp = no_folder
        from slipway_process import cuda_stubs
        with cuda_stubs.for_torch():
            import torch
        print(torch.ones(2).sum())
    """
    assert "tensor(2.)" in _run(sys.executable, "-c", textwrap.dedent(code))


def _imported(variables: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(_run(sys.executable, "-c", textwrap.dedent(IMPORT), variables=variables))
    return result


def _compiler() -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc"]


def _loaded(name: str) -> str:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if name in line)


def _run(*command: object, variables: dict[str, str] | None = None) -> str:
    environ = os.environ | (variables or {})
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, env=environ).stdout
