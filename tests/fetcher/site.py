"""Web servers for the fetcher: files by path, hubs, and how to fetch from them."""

import contextlib
import hashlib
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from slipway_fetcher import fetching as fetcher
from slipway_fetcher.guard import EgressRules
from tests.server.process import SOURCES

LIMIT = 10**9
FETCHER = (sys.executable, "-c", "from slipway_fetcher.__main__ import main; main()")
HERE = EgressRules.of(["localhost", "127.0.0.1"])


class Server(ThreadingHTTPServer):
    """Uses TLS once it has a context: on each connection, so that the listening socket stays the one that listens."""

    daemon_threads = False  # server_close waits for them: no connection outlives its test
    context: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.context is None:
            return super().finish_request(request, client_address)
        with self.context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)


class Site:
    """Serves files by path, with ranges; a test can make it fail."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.seen: list[tuple[str, dict[str, str]]] = []  # path and headers
        self.redirects: dict[str, str] = {}
        self.cut: dict[str, list[int]] = {}  # bytes after which each of the next answers of a path breaks off
        self.held: dict[str, tuple[int, threading.Event]] = {}  # bytes after which a path's answers wait for an event
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

    def redirect(self, http: BaseHTTPRequestHandler, target: str) -> None:
        http.send_response(302)
        http.send_header("Location", target)
        http.send_header("Content-Length", "0")
        http.end_headers()

    def answer(self, http: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        path = http.path.partition("?")[0]
        path = unquote(path) if unquote(path) in self.files else path
        wanted = http.headers.get("Range")
        self.requests.append((path, wanted))
        self.seen.append((path, dict(http.headers)))
        if path in self.redirects:
            return self.redirect(http, self.redirects[path])
        body = self.files.get(path)
        status = self.statuses.pop(0) if self.statuses else 404 if body is None else 206 if wanted else 200
        if status >= 400 or body is None:
            return http.send_error(status)
        whole, begin, end = len(body), *_range(wanted, len(body))
        body = body[begin:end] if wanted else body
        http.send_response(status)
        for name, value in self.headers.get(path, {}).items():
            if name != "Content-Range":
                http.send_header(name, value)
        if wanted and status == 206:
            own = self.headers.get(path, {}).get("Content-Range")
            http.send_header("Content-Range", own or f"bytes {begin}-{end - 1}/{whole}")
        http.send_header("Content-Length", str(len(body)))
        http.end_headers()
        if with_body and path in self.held:
            sent, event = self.held[path]
            http.wfile.write(body[:sent])
            event.wait(60)
            body = body[sent:]
        if with_body:
            http.wfile.write(body[: self.cut[path].pop(0)] if self.cut.get(path) else body)


def _range(wanted: str | None, size: int) -> tuple[int, int]:
    begin, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
    return int(begin), min(size, int(last) + 1) if last else size


@contextlib.contextmanager
def running_site() -> Iterator[Site]:
    site = Site()
    site.thread.start()
    yield site
    site.server.shutdown()
    site.thread.join()
    site.server.server_close()


def fetch(
    uri: str,
    dest: Path,
    revision: str = "",
    max_bytes: int = LIMIT,
    *,
    rules: EgressRules = HERE,
    pin: Path | None = None,
) -> dict[str, Any]:
    """The marker that a fetch leaves."""
    fetcher.fetch(uri, revision, dest, max_bytes=max_bytes, sources=fetcher.Sources(rules), pin_file=pin)
    marker: dict[str, Any] = json.loads((dest / "slipway-model.json").read_bytes())
    return marker


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def manifest_of(files: dict[str, bytes]) -> bytes:
    listed = {name: {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()} for name, body in files.items()}
    return json.dumps({"files": listed}).encode()


def offer(site: Site, files: dict[str, bytes]) -> None:
    site.files = {f"/m/{name}": body for name, body in files.items()} | {"/m/slipway-manifest.json": manifest_of(files)}


def archive(files: dict[str, bytes], more: Callable[[tarfile.TarFile], None] = lambda tar: None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        more(tar)
    return buffer.getvalue()


def run(dest: Path, uri: str, *flags: str, **environment: str) -> tuple[int, str, str]:
    """The fetcher as a process: exit code, last words and log."""
    words = dest.parent / "words"
    words.unlink(missing_ok=True)
    result = subprocess.run(
        [*FETCHER, "--uri", uri, "--dest", str(dest), *flags],
        env=dict(
            os.environ,
            SLIPWAY_TERMINATION_LOG=str(words),
            PYTHONPATH=SOURCES,
            **environment,
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, words.read_text() if words.exists() else "", result.stdout + result.stderr


def hub_fetch(site: Site, dest: Path, uri: str, *flags: str, **environment: str) -> tuple[int, str]:
    """From the hub that the site is: exit code and last words."""
    endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{site.port}"} | environment
    code, words, log = run(dest, uri, "--allow-host", "127.0.0.1", *flags, **endpoint)
    return code, words or log


def offer_repository(site: Site, files: dict[str, bytes], sha: str = "a" * 40, *names: str) -> None:
    """org/tiny at a commit, which `main` and the other names lead to."""
    siblings: list[dict[str, Any]] = []
    for name, body in files.items():
        sha256 = hashlib.sha256(body).hexdigest()
        path = f"/org/tiny/resolve/{sha}/{name}"
        site.files[path] = body
        site.headers[path] = {"X-Repo-Commit": sha, "ETag": f'"{sha256}"'}
        large = {"size": len(body), "sha256": sha256, "pointerSize": 1} if name.endswith(".safetensors") else None
        blob = hashlib.sha1(f"blob {len(body)}\0".encode() + body, usedforsecurity=False).hexdigest()
        siblings.append({"rfilename": name, "size": len(body), "blobId": blob} | ({"lfs": large} if large else {}))
    about = json.dumps({"id": "org/tiny", "sha": sha, "siblings": siblings}).encode()
    for name in (sha, "main", *names):
        site.files[f"/api/models/org/tiny/revision/{name}"] = about
