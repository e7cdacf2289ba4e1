"""A real emulator of Azure's object store for tests: azurite, from npm, in a folder of its own in the cache."""

import base64
import contextlib
import hashlib
import hmac
import http.client
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from testkit.world.program import Launch, running
from tests.support import npm

LOCKED = Path(__file__).with_name("azurite")
ACCOUNT = "devstoreaccount1"
# The emulator's own, which its documentation has.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_S = 60.0
_VERSION, _ENDS = "2021-08-06", "2099-01-01T00:00:00Z"


@dataclass(frozen=True)
class Azure:
    """A server with containers; `log` has its requests."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def put(self, container: str, files: Mapping[str, bytes]) -> None:
        """A container with blobs."""
        self._call("PUT", container, restype="container")
        for key, body in files.items():
            status = self._call("PUT", f"{container}/{quote(key)}", body)
            assert status == 201, (key, status)

    def delete(self, container: str, key: str) -> None:
        assert self._call("DELETE", f"{container}/{quote(key)}") == 202

    def gets(self, container: str) -> list[str]:
        """Keys of blobs that were read so far."""
        return re.findall(rf'"GET /{ACCOUNT}/{container}/(\S+) HTTP', self.log.read_text())

    def _call(self, method: str, path: str, body: bytes = b"", **query: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": _VERSION, "Content-Length": str(len(body))}
        with contextlib.closing(connection):
            signed = f"{urlencode(query)}&{token('rwdlac')}"
            connection.request(method, f"/{ACCOUNT}/{path}?{signed}", body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status


def token(permissions: str) -> str:
    """A shared access signature for all of the account."""
    text = "\n".join([ACCOUNT, permissions, "b", "sco", "", _ENDS, "", "", _VERSION, "", ""])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    fields = {"sv": _VERSION, "ss": "b", "srt": "sco", "sp": permissions, "se": _ENDS, "sig": signature}
    return urlencode(fields)


@contextlib.contextmanager
def azurite(log: Path) -> Iterator[Azure]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry"]
    command = [str(npm.installed(LOCKED) / "node_modules" / ".bin" / "azurite-blob"), *here]
    url = f"http://127.0.0.1:{port}"
    ready = f"{url}/{ACCOUNT}?restype=service&comp=properties&{token('r')}"
    with running(Launch(command, {"PATH": npm.environment()["PATH"]}, url, ready), log, START_S):
        yield Azure(port, log)
