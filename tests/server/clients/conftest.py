"""The servers that the tests of the HTTP surface share."""

from tests.server.http.conftest import embedder, server

__all__ = ["embedder", "server"]
