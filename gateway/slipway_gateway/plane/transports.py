"""The transport of a connection whose TLS session the data plane has: plain bytes, and what TLS says of its client."""

import asyncio
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..identity.certificates import peer_of

if TYPE_CHECKING:
    from slipway_plane import _native


class SecuredTransport(asyncio.Transport):
    """Passes all on to asyncio's transport of Python's end. `context`: stands for TLS, as asyncio's own shows it."""

    def __init__(self, inner: asyncio.Transport, secured: "_native.Secured", context: ssl.SSLContext) -> None:
        self._inner, self._secured = inner, secured
        super().__init__()
        self._known: dict[str, Any] = {"peername": secured.peer, "sockname": secured.local, "sslcontext": context}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of a transport with TLS: also `peercert`, with what `identity.certificates.read` reads of it.

        `socket` is one of the kernel's pair: what is written to it reaches the client in order.
        """
        if name == "socket":
            return self._inner.get_extra_info(name, default)
        if name == "peercert" and "peercert" not in self._known:
            der = self._secured.certificate
            self._known["peercert"] = peer_of(der) if der is not None else None
        return self._known.get(name, default)

    def abort(self) -> None:
        """Closes at once. The client gets no close_notify."""
        self._secured.cut()
        self._inner.abort()

    def close(self) -> None:
        """Closes when the buffer is empty."""
        self._inner.close()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._inner.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replaces the protocol."""
        self._inner.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol."""
        return self._inner.get_protocol()

    def is_reading(self) -> bool:
        """Whether it reads."""
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        """What comes waits in the kernel, and then at the client."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        self._inner.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of what may wait here, in bytes."""
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait here."""
        return self._inner.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The low and the high one, in bytes."""
        return self._inner.get_write_buffer_limits()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data, or keeps it until it can."""
        self._inner.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Sends all of it."""
        self._inner.writelines(list_of_data)

    def write_eof(self) -> None:
        """Raises NotImplementedError, as TLS of asyncio does: no half of a connection is closed."""
        raise NotImplementedError

    def can_write_eof(self) -> bool:
        """False."""
        return False
