"""The two model servers behind the peers of the gateway's bench answer the same bytes."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from bench.engine.environments import Unavailable, ensure
from bench.gateway import mock_build
from bench.gateway.messages import CHAT, STREAM, Message
from bench.gateway.programs import upstream
from bench.gateway.upstream import StreamShape
from slipway_contracts.headers import PROMPT_TOKENS
from slipway_contracts.headers import STREAM as STREAM_HEADER
from slipway_gateway.wire.resume import StreamProgress

SHAPE = StreamShape(3, 0.02, marks=True)
PREDICT = Message("/v2/models/m/infer", b"\x0a\x01m")


def answer(url: str, request: bytes, end: bytes) -> bytes:
    """What arrives up to `end`."""
    where, received = urlsplit(url), b""
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=20) as client:
        client.sendall(request)
        while not received.endswith(end):
            part = client.recv(65536)
            assert part, received
            received += part
    return received


def whole(message: Message, content_type: str = "application/json") -> bytes:
    head = f"POST {message.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(message.body)}\r\n\r\n".encode() + message.body


def chunked(message: Message) -> bytes:
    head = f"POST {message.path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return (
        head
        + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (message.body[:9], message.body[9:]))
        + (b"0\r\n\r\n")
    )


REQUESTS = {
    "JSON": (whole(CHAT), b'"total_tokens":8}}'),
    "chunks": (chunked(CHAT), b'"total_tokens":8}}'),
    "stream": (whole(STREAM), b"\r\n0\r\n\r\n"),
    "protobuf": (whole(PREDICT, "application/x-protobuf"), b"\n\x01m"),
    # Two at once, as one connection may have them.
    "two": (whole(CHAT) + whole(STREAM), b"\r\n0\r\n\r\n"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with upstream(0, tmp_path_factory.mktemp("python"), SHAPE, in_rust=False) as url:
        yield url


@pytest.mark.integration
@pytest.mark.parametrize("name", REQUESTS)
def test_both_answer_the_same_bytes(name: str, python: str, tmp_path: Path) -> None:
    try:
        ensure(mock_build.environment(), Console(quiet=True))
    except Unavailable as error:
        pytest.skip(f"the mock in Rust is not built: {error}")
    request, end = REQUESTS[name]
    with ExitStack() as stack:
        rust = stack.enter_context(upstream(0, tmp_path, SHAPE, in_rust=True))
        assert answer(rust, request, end) == answer(python, request, end)


@pytest.mark.integration
def test_the_gateway_reads_the_marks_of_the_streams(python: str) -> None:
    received = answer(python, *REQUESTS["stream"])
    head, _, body = received.partition(b"\r\n\r\n")
    headers = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    progress = StreamProgress.begin(headers, "r1", "")
    assert progress is not None and headers[PROMPT_TOKENS] == "5"
    events = [part for part in re.split(rb"\r\n[0-9a-f]+\r\n|^[0-9a-f]+\r\n", body) if part.startswith(b": ")]
    with_ids = [progress.add_ids(event) for event in events]
    assert [event.partition(b"\n")[0].decode() for event in with_ids] == [
        f"id: r1.{headers[STREAM_HEADER]}.{number}.0a1b2c3d." for number in (1, 2, 3)
    ]
    assert progress.tokens == b"1001,1002,1003,"


def test_cargo_finds_its_toolchain_beside_it_where_the_home_folder_is_another_one(tmp_path: Path) -> None:
    """As rustup's shim does: without its folders it fails."""
    cargo = tmp_path / ".cargo" / "bin" / "cargo"
    cargo.parent.mkdir(parents=True)
    (tmp_path / ".rustup").mkdir()
    cargo.write_text(f'#!/bin/sh\n[ "$RUSTUP_HOME" = {tmp_path}/.rustup ] || {{ echo no toolchain >&2; exit 1; }}\n')
    cargo.chmod(0o755)
    environment = {"PATH": f"{cargo.parent}:/usr/bin:/bin", "HOME": "/nowhere"}
    expected = {"CARGO_HOME": str(tmp_path / ".cargo"), "RUSTUP_HOME": str(tmp_path / ".rustup")}
    assert mock_build.cargo_environment(environment) == expected
    assert mock_build.cargo_environment(environment | expected) == {}
    with pytest.raises(Unavailable, match="no toolchain"):
        mock_build.cargo_environment(environment | {"RUSTUP_HOME": "/wrong"})
    with pytest.raises(Unavailable, match="no cargo"):
        mock_build.cargo_environment({"PATH": "/nowhere"})
