"""A real emulator of Google Cloud Storage for tests: fake-gcs-server, compiled from its Go module."""

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from devcluster import pins
from testkit.cluster.tools import tool
from testkit.world.program import Launch, running

START_S = 60.0


@dataclass(frozen=True)
class GCS:
    """A server with buckets; `log` has its requests."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, bucket: str, files: Mapping[str, bytes]) -> None:
        """A bucket with objects, by Google's JSON API: the fetcher reads them by the XML API."""
        self._call("POST", "/storage/v1/b", json.dumps({"name": bucket}).encode())
        for key, body in files.items():
            upload = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
            status = self._call("POST", upload, body)
            assert status == 200, (key, status)

    def delete(self, bucket: str, key: str) -> None:
        assert self._call("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}") == 200

    def gets(self, bucket: str) -> list[str]:
        """Keys of objects that were read so far."""
        return [unquote(path) for path in re.findall(rf"GET /{bucket}/(\S+) HTTP", self.log.read_text())]

    def _call(self, method: str, path: str, body: bytes = b"") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/octet-stream"})
            answer = connection.getresponse()
            answer.read()
            return answer.status


@contextlib.contextmanager
def fake_gcs(log: Path) -> Iterator[GCS]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
    command = [tool(pins.GCS), "-backend", "memory", *here]
    url = f"http://127.0.0.1:{port}"
    with running(Launch(command, {}, url, f"{url}/storage/v1/b"), log, START_S):
        yield GCS(port, log)
