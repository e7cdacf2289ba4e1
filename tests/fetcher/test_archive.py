"""Archives over https://, and those that lie."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from slipway_fetcher import folder
from slipway_fetcher.archive import unpack
from slipway_fetcher.folder import DiskFullError, FetchError, UnusableError
from slipway_process.model_folder.checkpoint import CheckpointError
from tests.fetcher.site import Site, archive, contents, fetch


def test_an_archive_pinned_by_its_digest(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    body = archive({f"tiny/{name}": content for name, content in files.items()} | {"tiny/x.bin": b"pickle"})
    site.files["/tiny.tar.gz"] = body
    digest = hashlib.sha256(body).hexdigest()
    marker = fetch(f"{https}/tiny.tar.gz", tmp_path, revision=f"sha256:{digest}")
    assert contents(Path(marker["path"])) == files
    assert marker["left_out"] == ["tiny/x.bin"]
    with pytest.raises(FetchError, match=rf"has sha256:{digest}; spec\.model\.revision is sha256:0{{64}}\."):
        fetch(f"{https}/tiny.tar.gz", tmp_path / "other", revision="sha256:" + "0" * 64)
    with pytest.raises(FetchError, match="sha256: and 64 hexadecimal digits"):
        fetch(f"{https}/tiny.tar.gz", tmp_path / "other", revision="main")


@pytest.mark.attack_class(21)
@pytest.mark.parametrize("name", ["../evil.json", "/evil.json", "link"])
def test_archives_that_lead_out_are_refused(https: str, site: Site, tmp_path: Path, name: str) -> None:
    def link(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)

    site.files["/m.tar"] = archive({"a.safetensors": b""}, link) if name == "link" else archive({name: b"{}"})
    with pytest.raises(FetchError, match="links are refused" if name == "link" else "leads out"):
        fetch(f"{https}/m.tar", tmp_path)


def test_an_archive_without_a_shard_is_refused(https: str, site: Site, tiny_broken: Path, tmp_path: Path) -> None:
    site.files["/m.tar"] = archive(contents(tiny_broken))
    with pytest.raises(CheckpointError, match="is missing"):
        fetch(f"{https}/m.tar", tmp_path)


def write(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for member, body in members:
            tar.addfile(member, io.BytesIO(body))
    return path


def member(name: str, size: int, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    for field, value in fields.items():
        setattr(made, field, value)
    return made


@pytest.mark.attack_class(21)
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_only_files_and_folders(tmp_path: Path, kind: bytes) -> None:
    packed = write(tmp_path / "a.tar", (member("config.json", 0, type=kind, linkname="/etc/passwd"), b""))
    with pytest.raises(UnusableError, match="neither a file nor a folder"):
        unpack(packed, tmp_path, 10**6)


@pytest.mark.attack_class(21)
def test_a_file_cannot_be_written_through_what_was_unpacked(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    packed = write(tmp_path / "a.tar", (member("a.json", 1), b"x"), (member("a.json/b.json", 1), b"x"))
    with pytest.raises(UnusableError, match="cannot be written"):
        unpack(packed, target, 10**6)
    packed = write(tmp_path / "b.tar", (member("b.json", 1), b"x"), (member("./b.json", 1), b"y"))
    with pytest.raises(UnusableError, match=r"b\.json twice"):
        unpack(packed, target, 10**6)


@pytest.mark.attack_class(15, 21)
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """A left-out file of 200 MB costs decompression too: it counts."""
    packed = tmp_path / "bomb.tgz"
    with gzip.open(packed, "wb") as file, tarfile.open(fileobj=file, mode="w|") as tar:
        tar.addfile(member("x.bin", 200 * 2**20), io.BytesIO(bytes(200 * 2**20)))
        tar.addfile(member("model.safetensors", 1), io.BytesIO(b"x"))
    assert packed.stat().st_size < 2**20
    with pytest.raises(UnusableError, match=f"unpacked, has {200 * 2**20} bytes; the limit is {2**20}"):
        unpack(packed, tmp_path, 2**20)


@pytest.mark.attack_class(15)
def test_a_header_without_end_is_refused(tmp_path: Path) -> None:
    """tarfile reads an extended header into memory, whatever length it declares."""
    packed = tmp_path / "a.tgz"
    with gzip.open(packed, "wb") as file:
        file.write(member("x", 64 * 2**20, type=tarfile.XHDTYPE).tobuf())
        file.write(bytes(64 * 2**20))
    with pytest.raises(UnusableError, match="a header is too long"):
        unpack(packed, tmp_path, 2**40)


@pytest.mark.parametrize("body", [b"", b"no archive", b"\x1f\x8b", b"\x1f\x8b" + bytes(100), bytes(100)])
def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path, body: bytes) -> None:
    packed = tmp_path / "a.tar"
    packed.write_bytes(body)
    with pytest.raises(UnusableError, match="cannot be unpacked"):
        unpack(packed, tmp_path, 10**6)


def test_an_archive_that_ends_too_early(tiny_v1: Path, tmp_path: Path) -> None:
    body = archive(contents(tiny_v1))
    packed = tmp_path / "a.tgz"
    packed.write_bytes(body[: len(body) // 2])
    with pytest.raises(UnusableError, match="cannot be unpacked"):
        unpack(packed, tmp_path, 10**9)


def test_free_space_is_checked_before_unpacking(tiny_v1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "a.tgz"
    packed.write_bytes(archive(contents(tiny_v1)))
    usage = folder.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(DiskFullError, match="bytes more are needed, 10 are free"):
        unpack(packed, tmp_path, 10**9)
