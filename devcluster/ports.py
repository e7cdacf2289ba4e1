"""Ports for programs that take a number: no other program gets them between the choice and the program's start.

The kernel gives ports of its ephemeral range to programs that bind port 0. A number that was found free by binding and
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
_REACHED_WITHIN_S = 1.0


def reserve_port() -> int:
    """A TCP port that is free on every address of this machine, and reserved until this process ends.

    Raises:
        DevclusterError: when there is none.
    """
    for port in random.sample(RESERVABLE, len(RESERVABLE)):
        if _reserve(port):
            return port
    raise DevclusterError(f"No free port between {RESERVABLE.start} and {RESERVABLE.stop - 1}.")


def free_port_near(wanted: int) -> int:
    """The wanted port of the loopback address, or the next free one.

    Raises:
        DevclusterError: when none of a hundred is free.
    """
    for port in range(wanted, wanted + 100):
        if is_free(port, LOOPBACK):
            return port
    raise DevclusterError(f"No free port between {wanted} and {wanted + 99} on {LOOPBACK} for the gateway.")


def is_free(port: int, address: str = "") -> bool:
    """Whether a program can listen at this TCP port and be reached there through the loopback address.

    A port without a listener may still be taken: a cluster that died without `down` leaves firewall rules behind,
    which send what comes to its ports to an address that is gone.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen()
            with socket.create_connection((LOOPBACK, port), timeout=_REACHED_WITHIN_S) as client:
                return _accepts(listener, client)
        except OSError:
            return False


def _accepts(listener: socket.socket, client: socket.socket) -> bool:
    """Whether this client's connection arrived at this listener, and not elsewhere."""
    listener.settimeout(_REACHED_WITHIN_S)
    accepted, peer = listener.accept()
    accepted.close()
    return bool(peer == client.getsockname())


def _reserve(port: int) -> bool:
    """A UDP socket of the same number is the reservation: exclusive, without a file, and gone with the process."""
    token = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        token.bind((LOOPBACK, port))
    except OSError:
        token.close()
        return False
    if not is_free(port):
        token.close()
        return False
    token.detach()  # stays open
    return True
