"""A real OCI registry for tests: distribution, from Debian's package, which is unpacked and not installed."""

import base64
import contextlib
import hashlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from testkit.world.program import Launch, running
from tests.support.registry import MANIFEST
from tests.support.stores.debian import program

PACKAGE = "docker-registry"
USER, PASSWORD = "me", "canary"
_PASSWORDS = f"{USER}:$2b$04$2ntLSkt9ARdznFgXHSE.H.eqxhZVrGIC/qeeFd1d4HoUEieLJclLC\n"  # by bcrypt
START_S = 60.0


@dataclass(frozen=True)
class Distribution:
    """A registry on loopback, and how artefacts are pushed to it."""

    port: int
    secured: bool

    def layer(self, repository: str, body: bytes, kind: str, **annotations: str) -> dict[str, Any]:
        """Push a blob; its entry for a manifest."""
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        status, place = self._call("POST", f"/v2/{repository}/blobs/uploads/")
        assert status == 202, status
        parts = urlsplit(place)
        status, _ = self._call("PUT", f"{parts.path}?{parts.query}&digest={digest}", body, "application/octet-stream")
        assert status == 201, status
        return {"mediaType": kind, "digest": digest, "size": len(body), "annotations": annotations}

    def push(self, repository: str, tag: str, layers: list[dict[str, Any]]) -> str:
        """Push a manifest of the layers; its digest."""
        config = self.layer(repository, b"{}", "application/vnd.oci.empty.v1+json")
        whole = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        body = json.dumps(whole).encode()
        status, _ = self._call("PUT", f"/v2/{repository}/manifests/{tag}", body, MANIFEST)
        assert status == 201, status
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    def _call(self, method: str, path: str, body: bytes = b"", kind: str = "") -> tuple[int, str]:
        headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        if self.secured:
            headers["Authorization"] = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers.get("Location") or ""


@contextlib.contextmanager
def distribution(folder: Path, *, secured: bool) -> Iterator[Distribution]:
    """Start it with its blobs in the folder; with credentials where it is `secured`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "passwords").write_text(_PASSWORDS)
    config: dict[str, Any] = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if secured:
        config["auth"] = {"htpasswd": {"realm": "here", "path": str(folder / "passwords")}}
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    command = [str(program(PACKAGE)), "serve", str(folder / "config.yml")]
    url = f"http://127.0.0.1:{port}"
    with running(Launch(command, {}, url, f"{url}/"), folder / "log", START_S):
        yield Distribution(port, secured)
