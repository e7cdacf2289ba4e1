"""A real S3 for tests: moto, in an environment of its own, because it needs libraries that ours have left behind."""

import contextlib
import http.client
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from testkit.world.program import Launch, running
from tests.support.stores.installed import environment

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# Enough for moto where it checks no identities: it must not take a call for an anonymous one.
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
START_S = 60.0


@dataclass(frozen=True)
class S3:
    """A server with buckets; `log` has its requests."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Authorization": SIGNED, **(headers or {})})
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def put(self, bucket: str, files: dict[str, bytes]) -> None:
        """A bucket with objects, whose keys may be hostile."""
        self.call("PUT", f"/{bucket}")
        for key, body in files.items():
            status = self.call("PUT", f"/{bucket}/{quote(key)}", body)
            assert status == 200, (key, status)

    def gets(self, bucket: str) -> list[str]:
        """Paths of objects that were read so far."""
        return re.findall(rf"GET /{bucket}/(\S+) HTTP", self.log.read_text())


@contextlib.contextmanager
def moto(log: Path, **variables: str) -> Iterator[S3]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(environment("moto", REQUIREMENTS) / "bin" / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running(Launch(command, variables, url, f"{url}/moto-api/"), log, START_S):
        yield S3(port, log)
