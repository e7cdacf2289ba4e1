"""Addresses of this machine."""

import socket


def own_address() -> str:
    """One that an EndpointSlice may hold: the API server refuses loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # sends nothing
        return str(one.getsockname()[0])
