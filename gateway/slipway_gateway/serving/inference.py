"""Paths of the API, and those of the Open Inference Protocol that the gateway answers itself, as one server."""

from collections.abc import Callable
from typing import Any

from ..balancing.published_table import PublishedTable
from ..identity.tenants import KnownTenant
from ..wire import errors
from .visible import listed

Answer = Callable[[KnownTenant | None], Any]

EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]

# In this order: names may contain slashes, so that longer endings come first.
INFER = ("/v2/models/{name:.+}/versions/{version:[^/]+}/infer", "/v2/models/{name:.+}/infer")
DESCRIBE = (
    "/v2/models/{name:.+}/versions/{version:[^/]+}/{verb:ready|config|stats}",
    "/v2/models/{name:.+}/{verb:ready|config|stats}",
    "/v2/models/{name:.+}/versions/{version:[^/]+}",
    "/v2/models/{name:.+}",
)


class InferenceServer:
    """Answers requests about the server itself; to clients of the protocol the gateway is one server."""

    def __init__(self, published: PublishedTable) -> None:
        self._published = published

    def answers(self) -> dict[str, tuple[str, Answer]]:
        """By path: the method, and a function that returns the body for a tenant or None. It may raise RequestError."""
        return {
            "/health": ("GET", self._ready),
            "/v2": ("GET", self._server),
            "/v2/health/live": ("GET", lambda _: {"live": True}),
            "/v2/health/ready": ("GET", self._ready),
            "/v2/repository/index": ("POST", self._index),
        }

    def _server(self, _: KnownTenant | None) -> Any:
        return {"name": "slipway-gateway", "version": "1", "extensions": EXTENSIONS}

    def _ready(self, _: KnownTenant | None) -> Any:
        if self._published.current is None:
            raise errors.no_table()
        return {"ready": True, "live": True}

    def _index(self, tenant: KnownTenant | None) -> Any:
        table = self._published.current
        if table is None:
            raise errors.no_table()
        return [
            {
                "name": name,
                "version": backend.version or backend.revision,
                "state": "READY" if table.urls(route, backend.revision) else "UNAVAILABLE",
                "reason": "",
            }
            for name, route in listed(table, tenant).items()
            for backend in route.backends
        ]
