"""The fetcher against real servers: files in place, HTTPS with interruptions, and a small hub."""

import hashlib
import io
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slipway_server import fetcher
from slipway_server.fetcher import web
from slipway_server.fetcher.folder import FetchError
from slipway_server.models.checkpoint import CheckpointError, read

LIMIT = 10**9
FETCHER = (sys.executable, "-c", "from slipway_server.fetcher import main; main()")


class Server(ThreadingHTTPServer):
    """Speaks TLS once it has a context: on each connection, so that the listening socket stays the one that listens."""

    daemon_threads = False  # server_close waits for them: no connection outlives its test
    context: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.context is None:
            return super().finish_request(request, client_address)
        with self.context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)


class Site:
    """Files by path; answers ranges, and can be told to fail."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.cut_after: list[int] = []  # bytes after which each of the next answers breaks off
        self.statuses: list[int] = []  # of the next answers
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self, with_body=True)

            def do_HEAD(self) -> None:
                site.answer(self, with_body=False)

            def log_message(self, *_: object) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def answer(self, http: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        path = http.path.partition("?")[0]
        wanted = http.headers.get("Range")
        self.requests.append((path, wanted))
        body = self.files.get(path)
        status = self.statuses.pop(0) if self.statuses else 404 if body is None else 206 if wanted else 200
        if status >= 400 or body is None:
            return http.send_error(status)
        body = body[int(wanted.removeprefix("bytes=").partition("-")[0]) :] if wanted else body
        http.send_response(status)
        for name, value in self.headers.get(path, {}).items():
            http.send_header(name, value)
        http.send_header("Content-Length", str(len(body)))
        http.end_headers()
        if with_body:
            http.wfile.write(body[: self.cut_after.pop(0)] if self.cut_after else body)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    site.thread.start()
    yield site
    site.server.shutdown()
    site.thread.join()
    site.server.server_close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate of the test's HTTPS server")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        key,
        "-out",
        certificate,
        *subject,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def https(site: Site, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    site.server.context = context
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setattr(web, "BACKOFF_S", 0.01)
    return f"https://localhost:{site.port}"


def fetch(uri: str, dest: Path, revision: str = "", max_bytes: int = LIMIT) -> dict[str, Any]:
    fetcher.fetch(uri, revision, dest, max_bytes=max_bytes)
    marker: dict[str, Any] = json.loads((dest / "slipway-model.json").read_bytes())
    return marker


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def manifest_of(files: dict[str, bytes]) -> bytes:
    listed = {name: {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()} for name, body in files.items()}
    return json.dumps({"files": listed}).encode()


def offer(site: Site, files: dict[str, bytes]) -> None:
    site.files = {f"/m/{name}": body for name, body in files.items()} | {"/m/slipway-manifest.json": manifest_of(files)}


def test_file_is_used_where_it_lies(tiny_v1: Path, tmp_path: Path) -> None:
    marker = fetch(f"file://{tiny_v1}", tmp_path / "dest")
    assert (marker["path"], marker["uri"], marker["revision"]) == (str(tiny_v1), f"file://{tiny_v1}", "")
    weights = tiny_v1 / "model.safetensors"
    assert marker["files"]["model.safetensors"] == {
        "size": weights.stat().st_size,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    assert read(tmp_path / "dest").folder == tiny_v1


def test_pvc_is_used_where_it_is_mounted(tiny_v1: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_v1, tmp_path / "pvc" / "models" / "tiny")
    mount = tmp_path / "pvc"
    fetcher.fetch("pvc://claim/models/tiny", "", tmp_path / "dest", max_bytes=LIMIT, pvc_mount=mount)
    assert read(tmp_path / "dest").folder == mount / "models" / "tiny"
    with pytest.raises(FetchError, match="leads out"):
        fetcher.fetch("pvc://claim/../etc", "", tmp_path / "other", max_bytes=LIMIT, pvc_mount=mount)


def test_the_broken_model_is_refused_and_leaves_no_marker(tiny_broken: Path, tmp_path: Path) -> None:
    words = tmp_path / "words"
    result = subprocess.run(
        [*FETCHER, "--uri", f"file://{tiny_broken}", "--dest", str(tmp_path / "dest")],
        env=dict(os.environ, SLIPWAY_TERMINATION_LOG=str(words), PYTHONPATH=str(Path(fetcher.__file__).parents[2])),
        capture_output=True,
        text=True,
    )
    assert result.returncode == os.EX_DATAERR
    assert "model-00002-of-00002.safetensors is missing" in words.read_text()
    assert not (tmp_path / "dest" / "slipway-model.json").exists()


def test_links_that_lead_out_are_refused(tiny_v1: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_v1, tmp_path / "model"))
    (folder / "inside.json").symlink_to("config.json")
    fetch(f"file://{folder}", tmp_path / "dest")
    (folder / "outside.json").symlink_to("/etc/passwd")
    with pytest.raises(FetchError, match=r"outside\.json is a link that leads out"):
        fetch(f"file://{folder}", tmp_path / "other")


@pytest.mark.parametrize("uri", ["ftp://host/model", "http://host/model", "/models/x", "file:///nowhere"])
def test_other_uris_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError):
        fetch(uri, tmp_path)


def test_a_listed_folder_over_https(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    offer(site, files | {"training_args.bin": b"pickle"})
    # The first answer is the manifest's; then a broken line in the middle of a file, and a server that is busy.
    site.cut_after, site.statuses = [10**9, 100], []
    marker = fetch(f"{https}/m", tmp_path)
    assert contents(Path(marker["path"])) == files
    assert any(wanted == "bytes=100-" for _, wanted in site.requests), "the file was not continued"
    assert not any("training_args" in path for path, _ in site.requests)
    before = len(site.requests)
    fetch(f"{https}/m", tmp_path)
    assert len(site.requests) == before, "a finished download was repeated"


def test_failures_are_retried_a_few_times(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, contents(tiny_v1))
    site.statuses = [503, 500, 429]
    fetch(f"{https}/m", tmp_path / "a")
    site.statuses = [503] * 10
    with pytest.raises(FetchError, match=r"failed 5 times, last: 503"):
        fetch(f"{https}/m", tmp_path / "b")
    site.statuses = []
    with pytest.raises(FetchError, match="answered 404"):
        fetch(f"{https}/other", tmp_path / "c")


def test_an_interrupted_run_is_continued(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, contents(tiny_v1))
    weights = site.files.pop("/m/model.safetensors")
    with pytest.raises(FetchError):
        fetch(f"{https}/m", tmp_path)
    site.files["/m/model.safetensors"] = weights
    (tmp_path / "model.partial" / "model.safetensors").write_bytes(weights[:5000])
    site.requests.clear()
    fetch(f"{https}/m", tmp_path)
    assert ("/m/model.safetensors", "bytes=5000-") in site.requests
    assert "/m/tokenizer.json" not in [path for path, _ in site.requests]


def test_a_wrong_checksum_is_refused(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, contents(tiny_v1))
    config = site.files["/m/config.json"]
    site.files["/m/config.json"] = config.replace(b"512", b"513")
    with pytest.raises(FetchError, match=r"config\.json .* does not have the size and checksum"):
        fetch(f"{https}/m", tmp_path)
    assert not (tmp_path / "slipway-model.json").exists()


def test_names_that_lead_out_are_refused(https: str, site: Site, tmp_path: Path) -> None:
    offer(site, {"../evil.json": b"{}", "model.safetensors": b""})
    with pytest.raises(FetchError, match=r"'\.\./evil\.json' leads out"):
        fetch(f"{https}/m", tmp_path)


def test_only_pickles_and_too_much_are_refused(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    offer(site, {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(FetchError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        fetch(f"{https}/m", tmp_path)
    offer(site, contents(tiny_v1))
    with pytest.raises(FetchError, match="the limit is 1000"):
        fetch(f"{https}/m", tmp_path, max_bytes=1000)


def archive(files: dict[str, bytes], more: Callable[[tarfile.TarFile], None] = lambda tar: None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        more(tar)
    return buffer.getvalue()


def test_an_archive_pinned_by_its_digest(https: str, site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    body = archive({f"tiny/{name}": content for name, content in files.items()} | {"tiny/x.bin": b"pickle"})
    site.files["/tiny.tar.gz"] = body
    digest = hashlib.sha256(body).hexdigest()
    marker = fetch(f"{https}/tiny.tar.gz", tmp_path, revision=f"sha256:{digest}")
    assert contents(Path(marker["path"])) == files
    with pytest.raises(FetchError, match="checksum of its revision"):
        fetch(f"{https}/tiny.tar.gz", tmp_path / "other", revision="sha256:" + "0" * 64)
    with pytest.raises(FetchError, match="sha256:DIGEST"):
        fetch(f"{https}/tiny.tar.gz", tmp_path / "other", revision="main")


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


def hub_fetch(site: Site, dest: Path, uri: str, *flags: str) -> tuple[int, str]:
    """In a process of its own: the library reads its endpoint when it is imported."""
    words = dest.parent / "words"
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from slipway_server.fetcher import main; main()",
            "--uri",
            uri,
            "--dest",
            str(dest),
            *flags,
        ],
        env=dict(
            os.environ,
            HF_ENDPOINT=f"http://127.0.0.1:{site.port}",
            HF_HOME=str(dest.parent / "home"),
            HF_HUB_OFFLINE="0",
            SLIPWAY_TERMINATION_LOG=str(words),
            PYTHONPATH=str(Path(fetcher.__file__).parents[2]),
        ),
        capture_output=True,
        text=True,
    )
    return result.returncode, words.read_text() if words.exists() else result.stderr


def offer_repository(site: Site, files: dict[str, bytes], sha: str = "a" * 40) -> None:
    siblings, tree = [], []
    for name, body in files.items():
        sha256 = hashlib.sha256(body).hexdigest()
        path = f"/org/tiny/resolve/{sha}/{name}"
        site.files[path] = body
        site.headers[path] = {"X-Repo-Commit": sha, "ETag": f'"{sha256}"'}
        lfs = {"size": len(body), "sha256": sha256, "pointerSize": 1} if name.endswith(".safetensors") else None
        siblings.append({"rfilename": name, "size": len(body), "lfs": lfs})
        entry = {"type": "file", "path": name, "oid": "0" * 40, "size": len(body)}
        tree.append(entry | ({"lfs": lfs | {"oid": sha256}} if lfs else {}))
    site.files[f"/api/models/org/tiny/tree/{sha}"] = json.dumps(tree).encode()
    about = json.dumps({"id": "org/tiny", "sha": sha, "siblings": siblings}).encode()
    for path in ("", f"/revision/{sha}", "/revision/main"):
        site.files[f"/api/models/org/tiny{path}"] = about


def test_a_repository_of_a_hub(site: Site, tiny_v1: Path, tmp_path: Path) -> None:
    files = contents(tiny_v1)
    offer_repository(site, files | {"pytorch_model.bin": b"pickle", "code.py": b"import os"})
    status, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny", "--revision", "main")
    assert status == 0, words
    assert contents(read(tmp_path / "dest").folder) == files
    assert not any("pytorch_model" in path for path, _ in site.requests)


def test_a_repository_that_cannot_be_used(site: Site, tmp_path: Path) -> None:
    offer_repository(site, {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    status, words = hub_fetch(site, tmp_path / "dest", "hf://org/tiny")
    assert status == os.EX_DATAERR and words.startswith("hf://org/tiny has only pickled weights")
    status, words = hub_fetch(site, tmp_path / "dest", "hf://org/other")
    assert status == os.EX_NOINPUT and "hf://org/other cannot be fetched at revision main" in words
