"""A registry on loopback that follows the distribution specification as far as pulls need it, with tokens."""

import base64
import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"


class RegistrySite:
    """Manifests and blobs; a test can make it want credentials, break off, or lead elsewhere."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.users: dict[str, str] | None = None  # None: no credentials are needed
        self.anonymous = False  # whether everybody gets a token
        self.scheme, self.realm, self.blobs_at = "bearer", "", ""
        self.tokens, self.token_uses = 0, 10**6
        self.uses: Counter[str] = Counter()
        self.scopes: list[str] = []
        self.cut: list[int] = []  # bytes after which each of the next blobs breaks off
        self.ranges: list[str | None] = []
        self.lock = threading.Lock()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def layer(self, body: bytes, kind: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.blobs[digest] = body
        return {"mediaType": kind, "digest": digest, "size": len(body), "annotations": annotations or {}}

    def push(self, name: str, tag: str, layers: list[dict[str, Any]], kind: str = MANIFEST) -> str:
        config = self.layer(b"{}", "application/vnd.oci.empty.v1+json")
        return self._put(name, tag, {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}, kind)

    def push_index(self, name: str, tag: str, entries: list[tuple[str, str, str]]) -> str:
        listed = [
            {"mediaType": MANIFEST, "digest": digest, "size": 1, "platform": {"os": os, "architecture": architecture}}
            for digest, os, architecture in entries
        ]
        return self._put(name, tag, {"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}, INDEX)

    def _put(self, name: str, tag: str, content: dict[str, Any], kind: str) -> str:
        body = json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[name, tag] = self.manifests[name, digest] = (body, kind)
        return digest

    def answer(self, http: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(http.path)
        if parts.path == "/token":
            return self._token(http, parse_qs(parts.query))
        if not self._is_allowed(http.headers.get("Authorization") or ""):
            realm = self.realm or f"http://127.0.0.1:{self.port}/token"
            bearer = f'Bearer realm="{realm}",service="here",scope="registry:catalog:*"'
            challenge = bearer if self.scheme == "bearer" else 'Basic realm="here"'
            return self._send(http, 401, b"{}", {"WWW-Authenticate": challenge})
        kind, _, reference = parts.path.removeprefix("/v2/").rpartition("/")
        name, _, kind = kind.rpartition("/")
        if kind == "manifests":
            body, media = self.manifests.get((name, reference), (None, ""))
            return self._send(http, 404 if body is None else 200, body or b"{}", {"Content-Type": media})
        if self.blobs_at:
            return self._send(http, 307, b"", {"Location": self.blobs_at})
        return self._blob(http, self.blobs.get(reference))

    def _blob(self, http: BaseHTTPRequestHandler, body: bytes | None) -> None:
        if body is None:
            return self._send(http, 404, b"{}", {})
        wanted = http.headers.get("Range")
        self.ranges.append(wanted)
        begin = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        more = {"Content-Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"} if wanted else {}
        with self.lock:
            cut = self.cut.pop(0) if self.cut and len(body) > self.cut[0] else None
        self._send(http, 206 if wanted else 200, body[begin:], more, cut)

    def _is_allowed(self, authorization: str) -> bool:
        if self.users is None:
            return True
        kind, _, value = authorization.partition(" ")
        if self.scheme == "basic":
            return kind == "Basic" and self._knows(value)
        with self.lock:
            self.uses[value] += 1
            return kind == "Bearer" and value.startswith("token-") and self.uses[value] <= self.token_uses

    def _knows(self, basic: str) -> bool:
        user, _, password = base64.b64decode(basic or "Og==").decode().partition(":")
        return bool(user) and (self.users or {}).get(user) == password

    def _token(self, http: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> None:
        self.scopes += query.get("scope", [])
        basic = (http.headers.get("Authorization") or "").removeprefix("Basic ")
        if not self.anonymous and not self._knows(basic):
            return self._send(http, 401, b"{}", {})
        with self.lock:
            self.tokens += 1
            body = json.dumps({"token": f"token-{self.tokens}"}).encode()
        self._send(http, 200, body, {})

    def _send(
        self, http: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        http.send_response(status)
        for name, value in headers.items():
            http.send_header(name, value)
        http.send_header("Content-Length", str(len(body)))
        http.end_headers()
        http.wfile.write(body[:cut])


@contextlib.contextmanager
def running_registry() -> Iterator[RegistrySite]:
    site = RegistrySite()
    site.thread.start()
    yield site
    site.server.shutdown()
    site.thread.join()
    site.server.server_close()
