"""Servers for the fetcher."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_server.fetcher import transfer
from tests.server.fetcher.site import Site


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
    monkeypatch.setattr(transfer, "BACKOFF_S", 0.01)
    return f"https://localhost:{site.port}"
