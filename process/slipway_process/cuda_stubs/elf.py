"""Shared libraries in ELF-64 (little-endian): what one exports, and a stub with the same exports. Names as in elf.h."""

import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# By machine: its number in ELF, and code that returns 1.
MACHINES = {"x86_64": (62, bytes.fromhex("b801000000c3")), "aarch64": (183, bytes.fromhex("20008052c0035fd6"))}
PAGE = 1 << 16  # the largest one that Linux has on these machines

EHDR, PHDR, SHDR, SYM, DYN = map(struct.Struct, ("<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<IIQQQQIIQQ", "<IBBHQQ", "<QQ"))
VERDEF, VERDAUX, VERSYM = map(struct.Struct, ("<HHHHIII", "<II", "<H"))
IDENT = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
ET_DYN, VER_FLG_BASE, GLOBAL_FUNCTION = 3, 1, 0x12
PT_LOAD, PT_DYNAMIC, READ_EXECUTE, READ_WRITE = 1, 2, 5, 6
SHT_DYNSYM, SHT_GNU_VERDEF, SHT_GNU_VERSYM = 11, 0x6FFFFFFD, 0x6FFFFFFF
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 4, 5, 6, 10, 11, 14
DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
VERSION_BITS = 0x7FFF  # of a number in VERSYM; the other one hides the symbol from those who ask for no version


@dataclass(frozen=True, slots=True)
class Exports:
    """Exported functions, each with the number of its version, and the names of versions by number.

    Number 1 is the library itself. A library without versions has none.
    """

    functions: dict[str, int]
    versions: dict[int, str]


def exports_of(library: Path) -> Exports:
    """The global functions that a library exports.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no ELF-64 library.
    """
    try:
        with library.open("rb") as file:
            return _exports(file.fileno())
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"{library} is no ELF-64 library: {error}") from error


def _exports(file: int) -> Exports:
    def read(offset: int, size: int) -> bytes:
        return os.pread(file, size, offset)

    header = EHDR.unpack(read(0, EHDR.size))
    if header[0][:6] != IDENT[:6]:
        raise ValueError("an ELF-64 library begins differently")
    sections = list(SHDR.iter_unpack(read(header[6], header[11] * header[12])))
    found = {kind: (offset, size, link) for _, kind, _, _, offset, size, link, *_ in sections}
    nothing = (0, 0, 0)
    offset, size, link = found.get(SHT_DYNSYM, nothing)
    symbols, strings = SYM.iter_unpack(read(offset, size)), read(*sections[link][4:6])
    numbers = [number & VERSION_BITS for (number,) in VERSYM.iter_unpack(read(*found.get(SHT_GNU_VERSYM, nothing)[:2]))]
    functions = {
        _string(strings, name): numbers[place] if numbers else 1
        for place, (name, kind, _, section, _, _) in enumerate(symbols)
        if kind == GLOBAL_FUNCTION and section
    }
    return Exports(functions, dict(_versions(read(*found.get(SHT_GNU_VERDEF, nothing)[:2]), strings)))


def _versions(data: bytes, strings: bytes) -> Iterable[tuple[int, str]]:
    following = at = 0
    while data and (following or not at):
        _, _, number, _, _, names, following = VERDEF.unpack_from(data, at)
        yield number, _string(strings, VERDAUX.unpack_from(data, at + names)[0])
        at += following or len(data)


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def stub_of(exports: Exports, name: str) -> bytes:
    """A shared library for this machine, called `name`, whose functions return 1.

    The parts lie one after the other, each at a multiple of 8, and behind them, in a page that the loader may write to,
    the dynamic section.
    """
    machine, code = MACHINES[platform.machine()]
    strings = _Strings([name, *exports.functions, *exports.versions.values()])
    headers = EHDR.size + 3 * PHDR.size
    parts = {
        DT_STRTAB: bytes(strings.data),
        DT_SYMTAB: bytes(SYM.size)
        + b"".join(SYM.pack(strings.places[each], GLOBAL_FUNCTION, 0, 1, headers, 0) for each in exports.functions),
        DT_HASH: _hash_table(list(exports.functions)),
    }
    if exports.versions:
        parts[DT_VERSYM] = bytes(VERSYM.size) + b"".join(map(VERSYM.pack, exports.functions.values()))
        parts[DT_VERDEF] = _version_definitions(exports.versions, strings)
    body = bytearray(code.ljust(8, b"\0"))
    dynamic = [(DT_SONAME, strings.places[name]), (DT_STRSZ, len(strings.data)), (DT_SYMENT, SYM.size)]
    dynamic += [(DT_VERDEFNUM, len(exports.versions))] if exports.versions else []
    for tag, part in parts.items():
        dynamic.append((tag, headers + len(body)))
        body += part + bytes(-len(part) % 8)
    last = b"".join(DYN.pack(*entry) for entry in [*dynamic, (0, 0)])
    end = headers + len(body)
    at = -(-end // PAGE) * PAGE
    sizes = (EHDR.size, PHDR.size, 3, SHDR.size, 0, 0)
    header = EHDR.pack(IDENT, ET_DYN, machine, 1, 0, EHDR.size, 0, 0, *sizes)
    header += PHDR.pack(PT_LOAD, READ_EXECUTE, 0, 0, 0, end, end, PAGE)
    header += PHDR.pack(PT_LOAD, READ_WRITE, at, at, at, len(last), len(last), PAGE)
    header += PHDR.pack(PT_DYNAMIC, READ_WRITE, at, at, at, len(last), len(last), 8)
    return (header + body).ljust(at, b"\0") + last


class _Strings:
    """A string table, and where each string begins in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.data, self.places = bytearray(b"\0"), dict[str, int]()
        for text in texts:
            self.places[text] = len(self.data)
            self.data += text.encode() + b"\0"


def _hash_table(names: list[str]) -> bytes:
    """DT_HASH of the symbols 1, 2, ... with these names: chains of the symbols whose hashes share a bucket."""
    buckets, chains = [0] * max(1, len(names)), [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = elf_hash(name) % len(buckets)
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + len(buckets) + len(chains)}I", len(buckets), len(chains), *buckets, *chains)


def elf_hash(name: str) -> int:
    """Hash of a symbol's name (System V ABI, "Hash Table")."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


def _version_definitions(versions: dict[int, str], strings: _Strings) -> bytes:
    data = b""
    for place, (number, name) in enumerate(versions.items(), 1):
        following = VERDEF.size + VERDAUX.size if place < len(versions) else 0
        flags = VER_FLG_BASE if number == 1 else 0
        data += VERDEF.pack(1, flags, number, 1, elf_hash(name), VERDEF.size, following)
        data += VERDAUX.pack(strings.places[name], 0)
    return data
