"""Serves the progress of a fetch, in Prometheus' text format, while the fetcher runs.

Any pod of the cluster may connect where no NetworkPolicy forbids it. So the server reads one packet of a request,
answers few connections at a time and few per second, and keeps none open. It uses no HTTP library, so that there is
little code for a hostile request to attack.
"""

import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, Thread

from slipway_process.supervisor import keep_thread

from .downloads import DownloadState

log = logging.getLogger(__name__)

CONNECTIONS = 4  # at a time, each with a thread; as many more wait in the listener's backlog
TIMEOUT_S = 1.0  # for the request, for the response, and then until the client closes
PAUSE_S = 0.1  # of a thread after each response: together they send at most 40 responses per second
REQUEST_BYTES = 2048
# SO_LINGER with 0 s: closing resets the connection and leaves no TIME_WAIT, which could keep the next server of this
# pod from binding the port.
_RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def served(port: int, state: Callable[[], DownloadState]) -> Iterator[int]:
    """Serves on `port` within the context, from threads; yields the bound port.

    Yields 0 and serves nothing when the port cannot be bound: the fetch goes on without it.
    """
    try:
        listener = _listener(port)
    except OSError as error:
        log.warning("the progress of the download cannot be read: port %d cannot be bound: %s", port, error)
        yield 0
        return
    ended = Event()
    serve = partial(_serve, listener, state, ended)
    threads = [
        Thread(target=keep_thread, args=("progress", serve), kwargs={"ended": ended}, name="progress", daemon=True)
        for _ in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        ended.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the threads: close alone does not
        listener.close()
        for thread in threads:
            thread.join(3 * TIMEOUT_S)


def page(state: DownloadState) -> str:
    """The metrics as text. The metric of the model's size is missing while the size is not known."""
    gauges = {
        "slipway_fetch_downloaded_bytes": (state.done_bytes, "Bytes of the model that are on the disk."),
        "slipway_fetch_size_bytes": (state.size_bytes, "Bytes of the model, once they are known."),
        "slipway_fetch_speed_bytes_per_second": (state.bytes_per_second, "Speed of the last ten seconds."),
        "slipway_fetch_waiting": (int(state.waiting), "Whether another pod downloads the model into the cache."),
    }
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n"
        for name, (value, text) in gauges.items()
        if value is not None
    )


def _listener(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=CONNECTIONS, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=CONNECTIONS)


def _serve(listener: socket.socket, state: Callable[[], DownloadState], ended: Event) -> None:
    while not ended.is_set():
        try:
            connection, _ = listener.accept()
        except OSError:  # it was shut down, or the client has left again
            ended.wait(PAUSE_S)
            continue
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.settimeout(TIMEOUT_S)
            connection.sendall(_response(connection.recv(REQUEST_BYTES), state))
            connection.recv(1)  # the client closes: it has read the response
        ended.wait(PAUSE_S)


def _response(request: bytes, state: Callable[[], DownloadState]) -> bytes:
    words = request.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return _written("400 Bad Request", "")
    if words[0] != b"GET":
        return _written("405 Method Not Allowed", "", "Allow: GET\r\n")
    if words[1].partition(b"?")[0] != b"/metrics":
        return _written("404 Not Found", "")
    return _written("200 OK", page(state()), "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n")


def _written(status: str, body: str, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
