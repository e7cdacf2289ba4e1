"""Fixtures that every suite may ask for; their code is in tests/support."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.support.api_server import api, api_server, namespace
from tests.support.loop import PatientLoop

__all__ = ["api", "api_server", "namespace"]


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], PatientLoop]]:
    """One for all: pytest-asyncio's own question."""
    return {"patient": PatientLoop}
