"""A proxy on loopback for a library that makes its own connections: the guard decides on each of them.

The library gets the proxy's URL and no other way out. TLS stays between the library and the store: for https the proxy
sees names and encrypted bytes alone.
"""

import contextlib
import errno
import fcntl
import http.client
import logging
import os
import select
import socket
import socketserver
import threading
import urllib.request
from collections.abc import Callable
from functools import partial
from types import TracebackType
from urllib.parse import urlsplit

from slipway_process.supervisor import keep_thread

from .. import guard
from ..folder import FetchError, UnusableError
from ..guard import PORTS, EgressRules, RefusedError

log = logging.getLogger(__name__)

HEAD_LIMIT_BYTES = 64 * 1024
BUFFER_BYTES = 1 << 20
CONNECT_S, IDLE_S = 15.0, 120.0
_NO_SPLICE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP})  # in a sandbox without splice
_HOP = ("connection", "proxy-connection", "proxy-authorization", "keep-alive")


class GuardedProxy:
    """Takes CONNECT for https; where `insecure`, also requests with an absolute http:// URL."""

    def __init__(self, rules: EgressRules, *, insecure: bool) -> None:
        proxies = {scheme: url for scheme, url in urllib.request.getproxies().items() if scheme in PORTS}
        self.rules, self.insecure = rules, insecure
        self.parents = {scheme: url if "://" in url else f"http://{url}" for scheme, url in proxies.items()}
        self.failure: FetchError | None = None  # of a connection that was refused, else of the last one if it failed
        self._left: int | None = None  # bytes that may still come
        self._lock = threading.Lock()
        self._server = _ProxyListener(("127.0.0.1", 0), self)
        self._ended = threading.Event()
        serve = partial(self._server.serve_forever, 0.05)
        self._thread = threading.Thread(
            target=keep_thread, args=("proxy", serve), kwargs={"ended": self._ended}, name="proxy", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def allow(self, size_bytes: int | None) -> None:
        """Set how many bytes may come from the store from now on; None: no limit."""
        with self._lock:
            self._left = size_bytes

    def came(self, size_bytes: int) -> None:
        """Count bytes from the store; UnusableError above the limit: the library reads lists and errors whole."""
        with self._lock:
            self._left = None if self._left is None else self._left - size_bytes
            if self._left is not None and self._left < 0:
                self.failure = UnusableError(
                    "The list of the store's objects is too long: name the folder of one model."
                )
                raise self.failure

    def failed(self, failure: FetchError | None) -> None:
        """Record how the last connection failed; None when it succeeded. A recorded refusal stays."""
        if not isinstance(self.failure, (RefusedError, UnusableError)):
            self.failure = failure

    def __enter__(self) -> "GuardedProxy":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _ProxyListener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False  # a connection ends with the library's, or with the process
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], proxy: GuardedProxy) -> None:
        self.proxy = proxy
        super().__init__(address, _ProxiedConnection)


class _ProxiedConnection(socketserver.BaseRequestHandler):
    request: socket.socket
    server: _ProxyListener

    def handle(self) -> None:
        self.request.settimeout(IDLE_S)
        try:
            head, rest = _head(self.request)
            upstream, begin, answer = _dialled(self.server.proxy, head)
        except RefusedError as error:
            self.server.proxy.failed(error)
            return self._end(b"403 Forbidden")
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.server.proxy.failed(FetchError(_reason(error)))
            return self._end(b"502 Bad Gateway")
        self.server.proxy.failed(None)
        with upstream:
            try:
                self.request.sendall(answer)
                upstream.sendall(begin + rest)
                _relay(self.request, upstream, self.server.proxy.came)
            except (OSError, UnusableError) as error:
                log.debug("a connection broke: %s", error)

    def _end(self, status: bytes) -> None:
        try:
            self.request.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except OSError as error:
            log.debug("the client is gone: %s", error)


def _reason(error: Exception) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)[:200]


def _head(client: socket.socket) -> tuple[bytes, bytes]:
    """The request line and headers, and what came after them."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = client.recv(HEAD_LIMIT_BYTES)
        if not chunk or len(received) > HEAD_LIMIT_BYTES:
            raise ValueError("the request has no end")
        received += chunk
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _dialled(proxy: GuardedProxy, head: bytes) -> tuple[socket.socket, bytes, bytes]:
    """Connect to the request's host; return the socket, and what is sent first to the host and to the client."""
    line, *headers = head.decode("latin-1").split("\r\n")
    method, target, version = line.split(" ")
    tunnel = method == "CONNECT"
    url = f"https://{target}" if tunnel else target
    parts = guard.check_url(proxy.rules, url, insecure=proxy.insecure and not tunnel)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    if parts.scheme == "https" and not tunnel:
        raise RefusedError(f"{guard.shown(url)} is requested without encryption.")
    parent = proxy.parents.get(parts.scheme)
    if parent and not urllib.request.proxy_bypass(host):
        return _through(proxy, parent, (host, port), head if not tunnel else b"")
    upstream = guard.connect(proxy.rules, (host, port), CONNECT_S)
    if tunnel:
        return upstream, b"", b"HTTP/1.1 200 Connection established\r\n\r\n"
    return upstream, _origin_form(method, url, version, headers), b""


def _origin_form(method: str, url: str, version: str, headers: list[str]) -> bytes:
    """The request as its origin takes it, with Connection: close: a second request on it could name another host."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in headers if line.partition(":")[0].strip().lower() not in _HOP]
    return "\r\n".join([f"{method} {path} {version}", *kept, "Connection: close", "", ""]).encode("latin-1")


def _through(
    proxy: GuardedProxy, parent: str, target: tuple[str, int], plain: bytes
) -> tuple[socket.socket, bytes, bytes]:
    """As `_dialled`, by the environment's proxy. It resolves names itself, so only the text of the URL is checked."""
    parts = urlsplit(parent)
    rules = proxy.rules.with_written(parent)
    upstream = guard.connect(rules, (parts.hostname or "", parts.port or PORTS["http"]), CONNECT_S)
    if plain:
        return upstream, plain + b"\r\nConnection: close\r\n\r\n", b""
    host = f"{target[0]}:{target[1]}"
    upstream.sendall(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head, rest = _head(upstream)
    return upstream, b"", head + b"\r\n\r\n" + rest


def _relay(client: socket.socket, upstream: socket.socket, came: Callable[[int], None]) -> None:
    """Copy bytes in both directions until one side closes, or none come for IDLE_S seconds."""
    poll = select.poll()
    for side in (client, upstream):
        poll.register(side, select.POLLIN)
    with _Mover() as mover:
        while ready := poll.poll(IDLE_S * 1000):
            for number, _ in ready:
                source, target = (upstream, client) if number == upstream.fileno() else (client, upstream)
                if not mover.move(source, target, came if source is upstream else _uncounted):
                    return


def _uncounted(size: int) -> None:
    """What goes to the store has no limit."""


class _Mover:
    """Moves bytes between sockets within the kernel, by splice; where it cannot, through a buffer."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # beyond the user's quota the pipe keeps its default size
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, BUFFER_BYTES)
        self._buffer: memoryview | None = None

    def move(self, source: socket.socket, target: socket.socket, came: Callable[[int], None]) -> int:
        """Move what the source has now; return how many bytes, 0 at its end, -1 when it has none. `came` may raise."""
        if self._buffer is None:
            try:
                size = os.splice(source.fileno(), self._in, BUFFER_BYTES)
            except BlockingIOError:
                return -1
            except OSError as error:
                if error.errno not in _NO_SPLICE:
                    raise
                self._buffer = memoryview(bytearray(BUFFER_BYTES))
            else:
                came(size)
                self._send(target, size)
                return size
        size = source.recv_into(self._buffer)
        came(size)
        target.sendall(self._buffer[:size])
        return size

    def _send(self, target: socket.socket, size: int) -> None:
        while size:
            try:
                size -= os.splice(self._out, target.fileno(), size)
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(target, select.POLLOUT)
                if not waiting.poll(IDLE_S * 1000):
                    raise TimeoutError("it takes no more bytes") from None

    def __enter__(self) -> "_Mover":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._out)
        os.close(self._in)
