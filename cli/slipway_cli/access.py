"""What the user said about where to go. Apart from the client library, which takes half a second to load."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """None is the kubeconfig's word."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    request_timeout_s: float = 10
