"""Types of the Rust library (plane/src/bindings)."""

from collections.abc import Sequence
from types import ModuleType
from typing import final

twins: ModuleType
"""The pure functions, as tests/plane calls them beside those of Python (plane/src/bindings/twins.rs). An input that a
function leaves to Python raises `NotSure`."""

def version() -> str:
    """The version of the crate."""

def address_owner(host: str) -> str:
    """What stands for the owner of an address: twin of the gateway's `limits.connections.address_owner`.

    Raises ValueError: `host` is no address of IPv4 or IPv6, or has a scope.
    """

@final
class Listener:
    """A port, and the thread that accepts on it. Its methods may be called by any thread."""

    def __init__(
        self,
        sockets: Sequence[int],
        *,
        max_connections: int,
        percentage: int,
        max_per_address: int,
        longest_silence_s: float,
        refusal_total: bytes,
        refusal_share: bytes,
    ) -> None:
        """`sockets`: descriptors of bound TCP sockets, which are the listener's from here on.

        `percentage`, `max_per_address`: as for `Places`; 0: no bound in any case. `longest_silence_s`: time that a
        connection may stay open without its first byte. `refusal_total`, `refusal_share`: whole responses on
        connections for which there is no place. Raises ValueError: a negative descriptor or time; OSError.
        """

    def start(self) -> None:
        """Listens and starts the thread; without effect while it runs and after `drain`. Raises OSError."""

    def fileno(self) -> int:
        """Readable when there is news to take."""

    def take(self) -> News:
        """What happened since the last call. Connections that are not detached from it are closed with it."""

    @property
    def connections(self) -> int:
        """Connections with a place: here, and handed over and not left."""

    @property
    def silent(self) -> int:
        """Connections of which no byte has come."""

    def close_silent(self, idle_s: float) -> None:
        """Closes those that are silent for `idle_s` now. Raises ValueError."""

    def drain(self, longest_silence_s: float) -> None:
        """Closes the port after it took what the kernel has completed. Raises ValueError.

        A connection that is silent for `longest_silence_s` is closed from here on.
        """

    def stop(self) -> None:
        """Ends the thread and waits for it. Silent connections are closed; those handed over are not."""

@final
class News:
    """What happened since the news was taken last; counts are of that time."""

    @property
    def handed(self) -> list[Handed]: ...
    @property
    def refused_total(self) -> int: ...
    @property
    def refused_share(self) -> int: ...
    @property
    def closed_idle(self) -> int:
        """Closed to make room."""

    @property
    def panics(self) -> int:
        """Connections that ended by a bug."""

    @property
    def accept_failures(self) -> int:
        """Times that there was no descriptor, or no memory, for a connection."""

    @property
    def ended(self) -> str | None:
        """Why the thread ended; None: it runs."""

@final
class Handed:
    """A connection with its first bytes."""

    @property
    def owner(self) -> str:
        """Of its address, as of `address_owner`."""

    def detach(self) -> int:
        """The descriptor, which is the caller's from here on. Raises RuntimeError: it was detached before."""

    def take_first_bytes(self) -> bytes:
        """What was read, at least one byte; the second call returns none."""

    def leave(self) -> None:
        """Gives its place back; once."""

@final
class Places:
    """Twin of `slipway_process.places.Places`, for one owner and one place at a time."""

    def __init__(self, limit: int, percentage: int = 50, most: int = 0) -> None: ...
    @property
    def used(self) -> int: ...
    def take(self, owner: str) -> str:
        """Returns "" or why there is no place: total or share."""

    def leave(self, owner: str) -> None: ...
