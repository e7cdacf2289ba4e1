"""Serves small pages from threads, while a process does something else.

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
from typing import NamedTuple

from slipway_process.supervisor import keep_thread

log = logging.getLogger(__name__)

CONNECTIONS = 4  # at a time, each with a thread; as many more wait in the listener's backlog
TIMEOUT_S = 1.0  # for the request, for the response, and then until the client closes
PAUSE_S = 0.1  # of a thread after each response: together they send at most 40 responses per second
REQUEST_BYTES = 2048
METRICS, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"
# SO_LINGER with 0 s: closing resets the connection and leaves no TIME_WAIT, which could keep the next server of this
# pod from binding the port.
_RESET = struct.pack("ii", 1, 0)


class Page(NamedTuple):
    """A response to a GET. `status`: the number and its words."""

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: str = "200 OK"


NOT_FOUND = Page(b"", status="404 Not Found")
Pages = Callable[[str], Page]  # the page of a path, from any of several threads


@contextlib.contextmanager
def served(port: int, pages: Pages, name: str, host: str = "") -> Iterator[int]:
    """Serves on `port` within the context, from threads of this name; yields the bound port. `host`: "" for all.

    Yields 0 and serves nothing when the port cannot be bound.
    """
    try:
        listener = socket.create_server((host, port), backlog=CONNECTIONS) if host else _listener(port)
    except OSError as error:
        log.warning("port %d cannot be bound: %s", port, error)
        yield 0
        return
    ended = Event()
    serve = partial(_serve, listener, pages, ended)
    threads = [
        Thread(target=keep_thread, args=(name, serve), kwargs={"ended": ended}, name=name, daemon=True)
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


def _listener(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=CONNECTIONS, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=CONNECTIONS)


def _serve(listener: socket.socket, pages: Pages, ended: Event) -> None:
    while not ended.is_set():
        try:
            connection, _ = listener.accept()
        except OSError:  # it was shut down, or the client has left again
            ended.wait(PAUSE_S)
            continue
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.settimeout(TIMEOUT_S)
            connection.sendall(_response(connection.recv(REQUEST_BYTES), pages))
            connection.recv(1)  # the client closes: it has read the response
        ended.wait(PAUSE_S)


def _response(request: bytes, pages: Pages) -> bytes:
    words = request.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return _written(Page(b"", status="400 Bad Request"))
    if words[0] != b"GET":
        return _written(Page(b"", status="405 Method Not Allowed"), "Allow: GET\r\n")
    return _written(pages(words[1].partition(b"?")[0].decode("latin-1")))


def _written(page: Page, headers: str = "") -> bytes:
    if page.body:
        headers += f"Content-Type: {page.kind}\r\n"
    head = f"HTTP/1.1 {page.status}\r\n{headers}Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + page.body
