"""Which cluster the user named, and the connection that the kubeconfig gives for it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Access:
    """Options of the user; None leaves the choice to the kubeconfig."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    request_timeout_s: float = 10


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server, an identity and a namespace. `configuration` is the client library's."""

    configuration: Any
    namespace: str
    context: str
