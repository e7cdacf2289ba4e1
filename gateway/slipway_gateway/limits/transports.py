"""What a transport of asyncio takes from its socket at once, and what its buffers may hold."""

import asyncio
import socket

# asyncio allocates this much for each read and gives back what was not filled. Its own 256 KiB are above the size from
# which the allocator maps pages for each block (see __main__): three system calls and page faults for each read.
READ_BYTES = 64 << 10
# The kernel's buffer for each direction of a connection. The kernel doubles the size, which is enough for 2.5 MB/s at a
# round trip of a tenth of a second.
_SOCKET_BUFFER_BYTES = 128 << 10
_WRITE_BUFFER_BYTES = 32 << 10


def read_in_small_pieces(transport: asyncio.BaseTransport) -> None:
    """Reads at most `READ_BYTES` at once. Without effect on a transport that is not asyncio's own."""
    if hasattr(transport, "max_size"):
        transport.max_size = READ_BYTES


def bound_buffers(transport: asyncio.Transport) -> None:
    """Makes the buffers of a connection small, so that unread data waits at the sender, not here."""
    read_in_small_pieces(transport)
    transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
    if opened := transport.get_extra_info("socket"):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
