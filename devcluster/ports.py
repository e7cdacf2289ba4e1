"""Ports for programs that take a number: nobody else gets them between the choice and the program's start.

The kernel gives ports of its ephemeral range to everyone who asks for any. A number that was found free by binding and
closing may therefore be taken a moment later. These come from below that range. They are reserved until this process
ends.
"""

from __future__ import annotations

import random
import socket

from devcluster.errors import DevclusterError

# Below the ephemeral range of Linux (32768 to 60999) and below the range of node ports (30000 to 32767).
RESERVABLE = range(20_000, 30_000)
LOOPBACK = "127.0.0.1"


def reserve_port() -> int:
    """A TCP port that is free on every address of this machine, and reserved until this process ends.

    Raises:
        DevclusterError: when there is none.
    """
    for port in random.sample(RESERVABLE, len(RESERVABLE)):
        if _reserve(port):
            return port
    raise DevclusterError(f"No free port between {RESERVABLE.start} and {RESERVABLE.stop - 1}.")


def _reserve(port: int) -> bool:
    """A UDP socket of the same number is the reservation: exclusive, without a file, and gone with the process."""
    token = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        token.bind((LOOPBACK, port))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        token.close()
        return False
    token.detach()  # stays open
    return True
