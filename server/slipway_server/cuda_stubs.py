"""Stub libraries for `import torch` on a machine without an NVIDIA driver.

torch from PyPI loads CUDA's libraries on such a machine too. Nothing calls them there, but their tables and their start
take 270 MiB of each process. While torch is imported, libraries with the same names, functions and versions stand in for
the largest ones. Their functions return 1, which is an error in all of these libraries.

torch loads the libraries of NVIDIA's packages by path, from the first entry of `sys.path` that has them
(`_preload_cuda_deps` in torch/__init__.py), and so does this module.
"""

import contextlib
import ctypes
import logging
import platform
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import environment

log = logging.getLogger("slipway.cuda")

# Those that take more than 5 MiB. They export C functions alone: C++ ones may be the first of their name in the process,
# and then other libraries would get the stub's.
LIBRARIES = ("libcublasLt.so.*[0-9]", "libnvJitLink.so.*[0-9]", "libnvrtc.so.*[0-9]", "libcufft.so.*[0-9]")
# Machine's number in ELF, and code that returns 1.
MACHINES = {"x86_64": (62, "b801000000c3"), "aarch64": (183, "20008052c0035fd6")}
PAGE = 1 << 16  # the largest one that Linux has on these machines

# ELF-64, little-endian: names and numbers as in elf.h.
EHDR, PHDR, SHDR, SYM, DYN = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<IIQQQQIIQQ", "<IBBHQQ", "<QQ"
VERDEF, VERDAUX = "<HHHHIII", "<II"
SHT_DYNSYM, SHT_GNU_VERDEF, SHT_GNU_VERSYM = 11, 0x6FFFFFFD, 0x6FFFFFFF
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 4, 5, 6, 10, 11, 14
DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
GLOBAL_FUNCTION, HIDDEN_VERSION = 0x12, 0x8000


@contextlib.contextmanager
def for_torch() -> Iterator[None]:
    """While this is entered, `import torch` gets stubs, unless there is a driver or SLIPWAY_CUDA_STUBS is `off`."""
    if "torch" in sys.modules or not environment.cuda_stubs() or _has_driver() or platform.machine() not in MACHINES:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="slipway-cuda-stubs-") as folder:
        try:
            write_stubs(sys.path, Path(folder))
        except (OSError, ValueError, struct.error) as error:
            log.warning("CUDA's libraries are loaded, although there is no driver: no stubs could be made: %s", error)
            yield
            return
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def write_stubs(paths: list[str], folder: Path) -> list[Path]:
    """Writes a stub of each library that the first of `paths` with it has; returns the files of the stubs.

    Raises:
        OSError: a library cannot be read, or a stub cannot be written.
        ValueError, struct.error: a file is no ELF-64 library.
    """
    written = []
    for pattern in LIBRARIES:
        found = next(((path, file) for path in paths for file in Path(path).glob(f"nvidia/*/lib/{pattern}")), None)
        if found is None:
            continue
        stub = folder / found[1].relative_to(found[0])
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_bytes(stub_of(exports_of(found[1]), found[1].name))
        written.append(stub)
    return written


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Exports:
    """What a library exports: for each function the number of its version, and the names of versions by number."""

    functions: dict[str, int]
    versions: dict[int, str]


def exports_of(library: Path) -> Exports:
    """The global functions of an ELF-64 library. Raises ValueError, struct.error or OSError if it is none."""
    with library.open("rb") as file:

        def read(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        header = struct.unpack(EHDR, read(0, struct.calcsize(EHDR)))
        if header[0][:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{library} is no ELF-64 library")
        sections = list(struct.iter_unpack(SHDR, read(header[6], header[11] * header[12])))
        data = {kind: (read(offset, size), link) for _, kind, _, _, offset, size, link, *_ in sections if kind in _READ}
        if SHT_DYNSYM not in data:
            raise ValueError(f"{library} exports nothing")
        symbols, link = data[SHT_DYNSYM]
        strings = read(sections[link][4], sections[link][5])
        numbers = [number for (number,) in struct.iter_unpack("<H", data.get(SHT_GNU_VERSYM, (b"", 0))[0])]
        versions = _versions(data.get(SHT_GNU_VERDEF, (b"", 0))[0], strings)
    functions = {}
    for place, (name, info, _, section, _, _) in enumerate(struct.iter_unpack(SYM, symbols)):
        if info == GLOBAL_FUNCTION and section:
            functions[_string(strings, name)] = numbers[place] & ~HIDDEN_VERSION if numbers else 1
    return Exports(functions, versions)


_READ = frozenset({SHT_DYNSYM, SHT_GNU_VERDEF, SHT_GNU_VERSYM})


def _versions(data: bytes, strings: bytes) -> dict[int, str]:
    """Number 1 is the library itself."""
    versions, at = {}, 0
    while at < len(data):
        _, _, number, _, _, first, following = struct.unpack_from(VERDEF, data, at)
        versions[number] = _string(strings, struct.unpack_from(VERDAUX, data, at + first)[0])
        if not following:
            break
        at += following
    return versions


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def stub_of(exports: Exports, name: str) -> bytes:
    """A shared library called `name` whose functions return 1."""
    machine, code = MACHINES[platform.machine()]
    strings, places = bytearray(b"\0"), {}
    for text in [name, *exports.functions, *exports.versions.values()]:
        places[text] = len(strings)
        strings += text.encode() + b"\0"
    headers = struct.calcsize(EHDR) + 3 * struct.calcsize(PHDR)
    # The parts lie one after the other, each at a multiple of 8, then the dynamic section in a page that can be written to.
    parts = {
        "code": bytes.fromhex(code),
        DT_STRTAB: bytes(strings),
        DT_SYMTAB: struct.pack(SYM, 0, 0, 0, 0, 0, 0)
        + b"".join(struct.pack(SYM, places[each], GLOBAL_FUNCTION, 0, 1, headers, 0) for each in exports.functions),
        DT_HASH: _hash_table(list(exports.functions)),
        DT_VERSYM: struct.pack("<H", 0) + b"".join(struct.pack("<H", each) for each in exports.functions.values()),
        DT_VERDEF: _version_definitions(exports.versions, places),
    }
    offsets, body = {}, bytearray()
    for kind, part in parts.items():
        offsets[kind] = headers + len(body)
        body += part + bytes(-len(part) % 8)
    end = headers + len(body)
    dynamic_at = -(-end // PAGE) * PAGE
    entries = [(DT_SONAME, places[name]), (DT_STRSZ, len(strings)), (DT_SYMENT, struct.calcsize(SYM))]
    entries += [(int(kind), offset) for kind, offset in offsets.items() if kind != "code"]
    if exports.versions:
        entries.append((DT_VERDEFNUM, len(exports.versions)))
    else:
        entries = [entry for entry in entries if entry[0] not in (DT_VERSYM, DT_VERDEF)]
    dynamic = b"".join(struct.pack(DYN, *entry) for entry in [*entries, (0, 0)])
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (struct.calcsize(EHDR), struct.calcsize(PHDR), 3, struct.calcsize(SHDR), 0, 0)
    load, dynamic_kind, execute, write = 1, 2, 5, 6  # PT_LOAD, PT_DYNAMIC, PF_R | PF_X, PF_R | PF_W
    header = struct.pack(EHDR, ident, 3, machine, 1, 0, struct.calcsize(EHDR), 0, 0, *sizes)
    header += struct.pack(PHDR, load, execute, 0, 0, 0, end, end, PAGE)
    header += struct.pack(PHDR, load, write, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), PAGE)
    header += struct.pack(PHDR, dynamic_kind, write, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    return (header + body).ljust(dynamic_at, b"\0") + dynamic


def _hash_table(names: list[str]) -> bytes:
    """DT_HASH of the symbols 1, 2, ... with these names: chains of the symbols whose hashes share a bucket."""
    buckets, chains = [0] * max(1, len(names)), [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = elf_hash(name) % len(buckets)
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + len(buckets) + len(chains)}I", len(buckets), len(chains), *buckets, *chains)


def elf_hash(name: str) -> int:
    """Hash of a symbol's name, by the System V ABI."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


def _version_definitions(versions: dict[int, str], places: dict[str, int]) -> bytes:
    size = struct.calcsize(VERDEF)
    each = size + struct.calcsize(VERDAUX)
    data = b""
    for place, (number, name) in enumerate(sorted(versions.items()), 1):
        following = each if place < len(versions) else 0
        base = 1 if number == 1 else 0  # VER_FLG_BASE
        data += struct.pack(VERDEF, 1, base, number, 1, elf_hash(name), size, following)
        data += struct.pack(VERDAUX, places[name], 0)
    return data
