"""The engine's end of its socket."""

import os
import resource
import socket

import pytest

from slipway_server.engine.wire import HungUp, Wire


def test_a_descriptor_above_1023_is_polled() -> None:
    """Seen: a server with 1,100 connections restarted its engine, which inherited such a number and ended at once."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < 2048:
        pytest.skip(f"this process may open {limit} files only")
    ours, theirs = socket.socketpair()
    high = 1500
    os.dup2(theirs.fileno(), high)
    theirs.close()
    with ours, socket.socket(fileno=high) as connection:
        wire = Wire(connection)
        assert not wire.readable(0.01)
        ours.sendall(b"x")
        assert wire.readable(10.0)


def test_the_end_of_the_other_process_is_readable() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        wire = Wire(theirs)
        ours.close()
        assert wire.readable(10.0)
        with pytest.raises(HungUp):
            wire.receive()
