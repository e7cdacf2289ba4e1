"""The port of a fetcher: what strangers who connect to it can do."""

import http.client
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from slipway_fetcher import pages
from slipway_fetcher.download_page import page, served
from slipway_fetcher.downloads import DownloadState
from slipway_fetcher.pages import CONNECTIONS, REQUEST_BYTES, TIMEOUT_S

STATE = DownloadState(430, 1000, 25)
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: pod\r\n\r\n"


@pytest.fixture
def port() -> Iterator[int]:
    with served(0, lambda: STATE) as port:
        yield port


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=30)


def answer(port: int, request: bytes = REQUEST) -> bytes:
    with connect(port) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return f"{response.status} ".encode() + response.read()


def values(text: str) -> dict[str, int]:
    lines = (line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: int(value) for name, value in lines}


def test_the_page_is_read_by_an_ordinary_client(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        found = values(response.read().decode())
    assert found == {
        "slipway_fetch_downloaded_bytes": 430,
        "slipway_fetch_size_bytes": 1000,
        "slipway_fetch_speed_bytes_per_second": 25,
        "slipway_fetch_waiting": 0,
    }


def test_an_unknown_size_is_left_out() -> None:
    found = values(page(DownloadState(430, None, 25, True)))
    assert "slipway_fetch_size_bytes" not in found and found["slipway_fetch_waiting"] == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x00", b"400"),
        (b"A" * REQUEST_BYTES, b"400"),
    ],
)
def test_other_requests_get_a_status_and_nothing_else(port: int, request_: bytes, status: bytes) -> None:
    assert answer(port, request_) == status + b" "
    assert answer(port).startswith(b"200 ")


def test_connections_that_send_nothing_hold_it_for_a_moment(port: int) -> None:
    idle = [connect(port) for _ in range(2 * CONNECTIONS)]
    assert answer(port).startswith(b"200 ")
    for connection in idle:
        connection.close()


def test_a_flood_meets_few_threads_and_few_responses(port: int) -> None:
    began, threads, count = time.monotonic(), threading.active_count(), 3 * CONNECTIONS
    for _ in range(count):
        assert answer(port).startswith(b"200 ")
    assert threading.active_count() == threads
    # One after the other, so that each connection meets a thread that pauses, or one of those that wait.
    assert time.monotonic() - began >= (count - CONNECTIONS) * pages.PAUSE_S / CONNECTIONS


@pytest.mark.parametrize("kept", ["idle", "answered", "closed"])
def test_another_server_binds_the_port_at_once_afterwards(kept: str) -> None:
    """Also one that sets no option for it, which TIME_WAIT or an open connection would keep from it."""
    with served(0, lambda: STATE) as port:
        connection = connect(port)
        if kept != "idle":
            connection.sendall(REQUEST)
            assert connection.recv(8)
        if kept == "closed":
            connection.close()
            time.sleep(0.05)
    with socket.socket() as successor:
        successor.bind(("127.0.0.1", port))
        successor.listen()
    connection.close()


def test_it_ends_soon_with_connections_open() -> None:
    with served(0, lambda: STATE) as port:
        idle = [connect(port) for _ in range(CONNECTIONS)]
        began = time.monotonic()
    assert time.monotonic() - began < 3 * TIMEOUT_S
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("progress")]
    for connection in idle:
        connection.close()


def test_a_port_in_use_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("", 0)) as other, served(other.getsockname()[1], lambda: STATE) as port:
        assert port == 0
    assert "cannot be bound" in caplog.text


def test_a_bug_at_one_response_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Each of the threads ended at its first one, and nothing had the reason."""
    left = [CONNECTIONS]

    def state() -> DownloadState:
        if left[0]:
            left[0] -= 1
            raise OverflowError("a bug")
        return STATE

    with served(0, state) as port:
        for _ in range(CONNECTIONS):
            with pytest.raises((OSError, http.client.HTTPException)):
                answer(port)
        assert answer(port).startswith(b"200")
    assert "the thread 'progress' ended and is started again" in caplog.text and "a bug" in caplog.text
