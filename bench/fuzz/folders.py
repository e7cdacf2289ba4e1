"""What the fetcher does with drawn archives and folders: a folder that loads, or one of its own errors.

Each example has a folder of its own with a tree beside the destination that nothing may change.
"""

import gzip
import json
import os
import shutil
import struct
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

from slipway_fetcher.archive import unpack
from slipway_fetcher.fetching import fetch
from slipway_fetcher.folder import FetchError
from slipway_process.model_folder import checkpoint
from slipway_process.model_folder.checkpoint import INDEX, MARKER, CheckpointError

from .schema import ANYTHING
from .tally import Tally
from .values import encode
from .values import extreme as extreme_json

LIMIT_BYTES = 1 << 20
OUTSIDE = "something was written outside of the folder"
VICTIM = "@"  # in names and links of what is drawn: the path of the tree that nothing may change
_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
SHARD = struct.pack("<Q", len(_HEADER)) + _HEADER + bytes(4)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 64,
    "eos_token_id": 1,
}
SOUND: dict[str, bytes] = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "generation_config.json": b'{"eos_token_id": [1, 2]}',
    "model-1.safetensors": SHARD,
    "model-2.safetensors": SHARD,
    INDEX: json.dumps({"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}).encode(),
}
NAMES = (
    *(
        *SOUND,
        "a/config.json",
        "./config.json",
        "a//b.json",
        "../evil.json",
        "a/../../evil.json",
        "/evil.json",
        f"{VICTIM}/kept.json",
    ),
    *(
        "..",
        ".",
        "",
        "/",
        "a/",
        "a\\..\\evil.json",
        "a\nb.json",
        "\u202ea.json",
        "x" * 300 + ".json",
        "a/" * 600 + "b.json",
        "é.json",
    ),
    *(
        "model.bin",
        "model.pkl",
        "modeling_evil.py",
        MARKER,
        f"a/{MARKER}",
        "con.json",
        " .json",
        "a.json/b.json",
        "a.json",
        "-rf.json",
    ),
)
LINKS = (
    ".",
    "..",
    "config.json",
    "/etc/passwd",
    VICTIM,
    f"{VICTIM}/kept.json",
    "../victim/kept.json",
    "missing",
    "self",
    "a",
)
KINDS = (tarfile.REGTYPE,) * 6 + (
    tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE,
    tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE, b"Z",
)  # fmt: skip
PAX: tuple[dict[str, str], ...] = (
    {},
    {"path": "../evil.json"},
    {"size": "99999999999"},
    {"size": "-1"},
    {"linkpath": "/etc"},
    {"GNU.sparse.major": "1"},
)


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive; `size` is the one in its header."""

    name: str
    kind: bytes
    content: bytes
    size: int
    link: str = ""
    pax: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Archive:
    """Members, and what happens to the bytes afterwards."""

    members: tuple[Member, ...]
    style: Literal[0, 1, 2]  # tarfile.USTAR_FORMAT and its like
    packed: bool
    cut: int | None
    noise: tuple[int, bytes] | None

    def write(self, victim: Path) -> bytes:
        body = b"".join(self._entry(one, str(victim)) for one in self.members) + bytes(1024)
        if self.noise:
            at = self.noise[0] % len(body)
            body = body[:at] + self.noise[1] + body[at + len(self.noise[1]) :]
        body = gzip.compress(body, mtime=0) if self.packed else body
        return body if self.cut is None else body[: self.cut % (len(body) + 1)]

    def _entry(self, one: Member, victim: str) -> bytes:
        info = tarfile.TarInfo(one.name.replace(VICTIM, victim))
        info.type, info.size, info.linkname = one.kind, one.size, one.link.replace(VICTIM, victim)
        info.pax_headers = dict(one.pax)
        try:
            head = info.tobuf(self.style, "utf-8", "surrogateescape")
        except ValueError:  # a name that is too long for this style
            head = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        return head + one.content + bytes(-len(one.content) % 512)


@dataclass(frozen=True, slots=True)
class Folder:
    """Files, links and folders by their names."""

    files: tuple[tuple[str, bytes], ...]
    links: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    pipes: tuple[str, ...]

    def write(self, root: Path, victim: Path) -> None:
        for name in self.folders:
            with suppress(OSError):
                (root / name).mkdir(parents=True)
        for name, link in self.links:
            with suppress(OSError):
                (root / name).symlink_to(link.replace(VICTIM, str(victim)))
        for name in self.pipes:
            with suppress(OSError):
                os.mkfifo(root / name)
        for name, content in self.files:
            if not (root / name).is_symlink() and not (root / name).is_fifo():
                with suppress(OSError):
                    (root / name).write_bytes(content)


def check_archive(archive: Archive, tally: Tally) -> None:
    """Unpacked to plain files below the destination, no more than allowed, or refused; nothing else is written."""
    with _Place() as place:
        packed = place.dest / "archive.partial"
        packed.write_bytes(archive.write(place.victim))
        target = place.dest / "model"
        target.mkdir()
        try:
            unpack(packed, target, LIMIT_BYTES)
            checkpoint.read(target)
            tally.ended("loads")
        except (FetchError, CheckpointError) as error:
            tally.ended(type(error).__name__)
            assert str(error), "an error without a sentence"
        found = list(target.rglob("*"))
        assert all(path.is_dir() or path.is_file() for path in found) and not any(path.is_symlink() for path in found)
        assert sum(path.stat().st_size for path in found if path.is_file()) <= LIMIT_BYTES
        place.check()


def check_folder(folder: Folder, tally: Tally) -> None:
    """Used where it lies, or refused; nothing is written but the marker."""
    with _Place() as place:
        root = place.root / "folder"
        root.mkdir()
        folder.write(root, place.victim)
        before = _tree(root)
        try:
            fetch(f"file://{root}", "", place.dest, max_bytes=LIMIT_BYTES)
            checkpoint.read(place.dest)
            tally.ended("loads")
        except (FetchError, CheckpointError) as error:
            tally.ended(type(error).__name__)
            assert str(error), "an error without a sentence"
        assert _tree(root) == before, "the folder is not what it was"
        assert {path.name for path in place.dest.iterdir()} <= {MARKER}
        place.check()


class _Place:
    """A destination, and beside it what must stay as it is."""

    def __enter__(self) -> "_Place":
        self.root = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.dest, self.victim = self.root / "dest", self.root / "victim"
        self.dest.mkdir()
        self.victim.mkdir()
        (self.victim / "kept.json").write_bytes(b"kept")
        self._before = self._outside()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root)

    def check(self) -> None:
        assert self._outside() == self._before, OUTSIDE

    def _outside(self) -> Any:
        return _tree(self.victim), sorted({one.name for one in self.root.iterdir()} - {"folder"})


def _tree(root: Path) -> list[tuple[str, int, int, int]]:
    """Names, kinds, sizes and times of all that is there."""
    found = []
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        found.append((str(path.relative_to(root)), about.st_mode, about.st_size, about.st_mtime_ns))
    return found


_JSON = st.one_of(ANYTHING.map(lambda value: json.dumps(value).encode()), extreme_json.map(encode))


@st.composite
def _contents(draw: st.DrawFn, name: str) -> bytes:
    """Of a file: what it should be, cut, damaged, or something else."""
    sound = SOUND.get(name.rpartition("/")[2], SHARD if name.endswith(".safetensors") else b"{}")
    kind = draw(st.sampled_from(("sound",) * 5 + ("cut", "damaged", "json", "field", "header", "pickle")))
    at = draw(st.integers(0, len(sound)))
    if kind == "json" or (kind == "field" and not name.endswith(".json")):
        return draw(_JSON)
    if kind == "field":
        fields = json.loads(sound) or {"a": 1}
        text = {field: json.dumps(value).encode() for field, value in fields.items()}
        text[draw(st.sampled_from(sorted(text)))] = draw(_JSON)
        text["auto_map"] = draw(_JSON) if draw(st.booleans()) else b"{}"
        return b"{" + b",".join(json.dumps(field).encode() + b":" + value for field, value in text.items()) + b"}"
    if kind == "header":
        header = draw(_JSON)
        return struct.pack("<Q", draw(st.sampled_from((len(header), 0, 2**63, 2**64 - 1, 100_000_000)))) + header
    made = {"sound": sound, "cut": sound[:at], "pickle": b"\x80\x04cos\nsystem\n(S'id'\ntR."}
    return made.get(kind, sound[:at] + draw(st.binary(max_size=3)) + sound[at + 1 :])


@st.composite
def _members(draw: st.DrawFn) -> Member:
    name, kind = draw(st.sampled_from(NAMES)), draw(st.sampled_from(KINDS))
    content = draw(_contents(name)) if kind == tarfile.REGTYPE or draw(st.booleans()) else b""
    lie = draw(st.sampled_from((None, None, None, 0, 1, 600, LIMIT_BYTES + 1, 2**33, 2**62)))
    pax = tuple(draw(st.sampled_from(PAX)).items()) if draw(st.integers(0, 3)) == 0 else ()
    return Member(name, kind, content, len(content) if lie is None else lie, draw(st.sampled_from(LINKS)), pax)


@st.composite
def archives(draw: st.DrawFn) -> Archive:
    """A sound model in most of them, with odd members before, between and after."""
    members = [Member(name, tarfile.REGTYPE, content, len(content)) for name, content in SOUND.items()]
    for one in draw(st.lists(_members(), max_size=3)):
        members.insert(draw(st.integers(0, len(members))), one)
    if draw(st.integers(0, 3)) == 0:
        members = members[draw(st.integers(0, len(members))) :]
    cut = draw(st.one_of(st.none(), st.none(), st.integers(0, 1 << 14)))
    noise = draw(st.one_of(st.none(), st.none(), st.tuples(st.integers(0, 1 << 14), st.binary(min_size=1, max_size=8))))
    styles: tuple[Literal[0, 1, 2], ...] = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    return Archive(tuple(members), draw(st.sampled_from(styles)), draw(st.booleans()), cut, noise)


@st.composite
def folders(draw: st.DrawFn) -> Folder:
    """A sound model with some of its files lost, changed or replaced by links, pipes and folders."""
    plain = st.sampled_from(
        (*SOUND, "model.bin", "evil.py", "modules.json", "extra.safetensors", "extra.json", "sub", MARKER)
    )
    names = [name for name in SOUND if draw(st.integers(0, 9))]
    names += draw(st.lists(plain, max_size=3))
    changed = draw(st.lists(st.sampled_from(names), max_size=2)) if names else []
    files = tuple(
        (name, draw(_contents(name)) if name in changed or name not in SOUND else SOUND[name]) for name in names
    )
    links = tuple(draw(st.lists(st.tuples(plain, st.sampled_from(LINKS)), max_size=1)))
    odd = st.lists(plain, max_size=1) if draw(st.integers(0, 3)) == 0 else st.just([])
    return Folder(files, links, tuple(draw(odd)), tuple(draw(odd)))
