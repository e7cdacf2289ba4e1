"""Model servers of raw sockets, all in one process: what each request wants is in its header `x-want: MODEL.KIND`.

    python -m tests.plane.recount.server PORTS

Prints the ports, one line of JSON; with each line of its standard input it prints how often each port got which want.
"""

import asyncio
import json
import sys
from collections import Counter

from .mix import INPUT_TOKENS, OUTPUT_TOKENS

SLOW_S = 1.3  # longer than the fast lane waits
_USAGE = {
    "prompt_tokens": INPUT_TOKENS,
    "completion_tokens": OUTPUT_TOKENS,
    "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
}


def _json(value: object, status: str = "200 OK", more: str = "", kind: str = "application/json") -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunks(*pieces: bytes, kind: str, ends: bool = True) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if ends else b"")


def _completion(text: str, finish: str = "stop", usage: object = _USAGE, *, is_chat: bool) -> dict[str, object]:
    """A response in the shape of its path."""
    content: dict[str, object] = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    choice = {"index": 0, "finish_reason": finish} | content
    response: dict[str, object] = {"id": "c", "object": "completion", "created": 1, "choices": [choice]}
    return response | ({"usage": usage} if usage else {})


def _event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


_GOOD = "an answer whose words differ from one another"
_DELTA = {"choices": [{"index": 0, "delta": {"content": "a"}, "text": "a", "finish_reason": None}]}
_LAST = {"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]}
_ERROR = {"error": {"message": "no", "type": "server_error", "code": "x"}}
_STREAM = (_event(_DELTA), _event(_DELTA), _event(_LAST), _event({"choices": [], "usage": _USAGE}), _event(b"[DONE]"))


def _responses(*, is_chat: bool) -> dict[str, bytes]:
    good = _completion(_GOOD, is_chat=is_chat)
    words = " ".join(f"word{number}" for number in range(14_000))
    return {
        "ok": _json(good),
        "embedding": _json({"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": INPUT_TOKENS}}),
        "prediction": _json({"model_name": "plain", "outputs": [{"name": "y", "data": [1.0], "shape": [1]}]}),
        "chunked": _chunks(json.dumps(good).encode(), kind="application/json"),
        "stream": _chunks(*_STREAM, kind="text/event-stream"),
        "broken-stream": _chunks(*_STREAM[:2], kind="text/event-stream", ends=False),
        "long": _json(_completion(words, is_chat=is_chat)),
        "404": _json(_ERROR, "404 Not Found"),
        "500": _json(_ERROR, "500 Internal Server Error"),
        "503": _json(_ERROR, "503 Service Unavailable"),
        "no-usage": _json(_completion(_GOOD, usage=None, is_chat=is_chat)),
        "empty": _json(b""),
        "loop": _json(_completion("again and " * 200, is_chat=is_chat)),
        "cut": _json(_completion("", finish="length", is_chat=is_chat)),
        "error-in-200": _json(_ERROR),
        "text": _json(b"hello", kind="text/plain"),
        "close": _json(good, more="Connection: close\r\n"),
        "half": _json(good)[:-40],
        "reset": b"",
    }


RESPONSES = {is_chat: _responses(is_chat=is_chat) for is_chat in (False, True)}
_CLOSES, _ABORTS = {"close"}, {"half", "reset", "broken-stream"}


class Server(asyncio.Protocol):
    """One connection of a gateway. `seen`: counts of its port."""

    def __init__(self, seen: Counter[str]) -> None:
        self._seen, self._received = seen, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0 or not self._is_whole(head_end):
            return
        begin = self._received.find(b"x-want: ", 0, head_end) + 8
        want = self._received[begin : self._received.find(b"\r\n", begin)].decode()
        is_chat = b"/chat/" in self._received[:head_end].split(b" ", 2)[1]
        self._received = b""
        self._seen[want] += 1
        kind = want.partition(".")[2]
        if kind == "slow":
            asyncio.get_running_loop().call_later(SLOW_S, self._answer, kind, is_chat)
        else:
            self._answer(kind, is_chat)

    def _is_whole(self, head_end: int) -> bool:
        """Gateways send one request at a time, so what has come is a part of one, or all of it."""
        head = self._received[:head_end].lower()
        at = head.find(b"content-length: ")
        if at < 0:
            return self._received.endswith(b"0\r\n\r\n")
        return len(self._received) >= head_end + 4 + int(head[at + 16 :].split(b"\r\n", 1)[0])

    def _answer(self, kind: str, is_chat: bool) -> None:
        transport, responses = self._transport, RESPONSES[is_chat]
        if transport is None or transport.is_closing():
            return
        transport.write(responses.get(kind, responses["ok"]))
        if kind in _ABORTS:
            # What was written leaves first.
            asyncio.get_running_loop().call_later(0.01 if responses[kind] else 0, transport.abort)
        elif kind in _CLOSES:
            transport.close()


async def main(count: int) -> None:
    loop = asyncio.get_running_loop()
    seen: list[Counter[str]] = [Counter() for _ in range(count)]
    ports = []
    for counts in seen:
        server = await loop.create_server(lambda counts=counts: Server(counts), "127.0.0.1", 0, backlog=1024)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
