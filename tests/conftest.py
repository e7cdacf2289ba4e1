"""Fixtures that every suite may ask for; their code is in tests/support."""

from tests.support.api_server import api, api_server, namespace

__all__ = ["api", "api_server", "namespace"]
