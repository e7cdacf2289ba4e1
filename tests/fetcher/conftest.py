"""Servers for the fetcher."""

import ssl
from collections.abc import Iterator

import pytest

from devcluster.certificates import Authority
from slipway_fetcher import transfer
from tests.fetcher.site import Site, running_site


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whose server.crt is for localhost."""
    authority = Authority.create(tmp_path_factory.mktemp("tls") / "authority")
    authority.issue("server", "localhost", hosts=["localhost"])
    return authority


@pytest.fixture
def https(site: Site, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.path("server.crt"), authority.path("server.key"))
    site.server.context = context
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path("ca.crt")))
    monkeypatch.setattr(transfer, "BACKOFF_S", 0.01)
    return f"https://localhost:{site.port}"
