"""What a connection needs of others: what runs its streams, and what bounds connections."""

from collections.abc import Coroutine
from typing import Any, Protocol

from ..limits.budget import Account
from .stream import Stream


class StreamService(Protocol):
    """What runs the streams of connections."""

    def opened(self, connection: Any) -> None: ...

    def closed(self, connection: Any) -> None: ...

    def open_account(self, connection: Any) -> Account:
        """Opens the account of what the connection holds in memory: it has one client, whose share it counts in."""
        ...

    def handle(self, stream: Stream, connection: Any) -> Coroutine[Any, Any, None] | None:
        """Returns what runs the stream; None when it has its response already."""
        ...

    def ended(self, stream: Stream, connection: Any) -> None:
        """What ran the stream has ended, or was cancelled before it began."""
        ...


class ConnectionBounds(Protocol):
    """Bounds connections: `serving.listener.ConnectionLimiter`."""

    def enter(self, connection: Any, owner: str, now_s: float) -> Exception | None: ...

    def leave(self, connection: Any, owner: str) -> None: ...
