"""What a transport of asyncio takes from its socket at once."""

import asyncio

# asyncio allocates this much for each read and gives back what was not filled. Its own 256 KiB are above the size from
# which the allocator maps pages for each block (see __main__): three system calls and page faults for each read.
READ_BYTES = 64 << 10


def read_in_small_pieces(transport: asyncio.BaseTransport) -> None:
    """Reads at most `READ_BYTES` at once. Without effect on a transport that is not asyncio's own."""
    if hasattr(transport, "max_size"):
        transport.max_size = READ_BYTES
