"""The servers that the tests of the HTTP surface share."""

from ..http.conftest import embedder, server

__all__ = ["embedder", "server"]
