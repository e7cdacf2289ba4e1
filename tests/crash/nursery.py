"""Starts operators at the price of a fork: `python -m tests.crash.nursery` has imported the program already.

A line on standard input starts one: {"id", "arguments", "environment", "log"}. Lines on standard output report what
happens: {"started": PID, "id"}, {"ended": PID, "code": CODE}. All end with standard input.
"""

import json
import os
import random
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from devcluster.processes import dies_with_parent
from slipway_operator.__main__ import main

_children: set[int] = set()


def serve() -> None:
    """Start and bury operators until standard input ends."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    bound_to_us, pending = dies_with_parent(), b""
    while True:
        readable, _, _ = select.select([0, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _bury()
        if 0 in readable:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                _start(json.loads(line), bound_to_us)
    for pid in _children:
        os.kill(pid, signal.SIGKILL)


def _start(order: dict[str, Any], bound_to_us: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        bound_to_us()
        _become(order)
    _children.add(pid)
    _tell({"started": pid, "id": order["id"]})


def _become(order: dict[str, Any]) -> NoReturn:
    """What `python -m slipway_operator` does, from the point on where it has imported everything."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order["environment"])
    random.seed()
    code = 1
    try:
        code = main(order["arguments"])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _bury() -> None:
    for pid in list(_children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _children.discard(pid)
            _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(event: dict[str, int]) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    serve()
