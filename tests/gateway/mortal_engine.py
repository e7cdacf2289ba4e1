"""An engine that ends where a request has it end: `python mortal_engine.py PORT LOG IDLE_S`, and how it is started.

What a body says: `die now`, `die later` (after more than a second), `die head` (behind the head of its response),
`die N` (a stream, behind N events), `take S` (a response after S seconds), `stream N` (of N events).
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LATER_S = 1.2
GAP_S = 0.02
STREAM = "1f-674f0000-" + "a" * 32
OK = b'{"choices": [{"text": "hi", "finish_reason": "stop"}]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
STREAM_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    f"X-Slipway-Stream: {STREAM}\r\n\r\n"
).encode()


class MortalEngine:
    """One such process, always at the same port. `log`: a line for each request, written before anything else."""

    def __init__(self, folder: Path, name: str, port: int, idle_s: float = 60.0) -> None:
        self.port, self._idle_s = port, idle_s
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / name
        self.log.touch()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        command = (sys.executable, "-I", __file__, str(self.port), str(self.log), str(self._idle_s))
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout
        with self._process.stdout as out:
            assert out.readline() == b"ready\n"

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """From outside, as `kill -9` does."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def seen(self, text: str = "") -> int:
        """How many requests it has got whose body begins with this text."""
        return sum(line.startswith(text) for line in self.log.read_text().splitlines())

    @property
    def idle_closes(self) -> int:
        return self.seen("(idle)")


@contextlib.contextmanager
def ended_at_last(*engines: MortalEngine) -> Iterator[None]:
    try:
        yield
    finally:
        for engine in engines:
            engine.kill()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: int, idle_s: float) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        first = True
        while True:
            try:
                async with asyncio.timeout(None if first else idle_s):
                    head = await reader.readuntil(b"\r\n\r\n")
            except TimeoutError:
                os.write(log, b"(idle)\n")
                break
            first = False
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            os.write(log, body[:60].replace(b"\n", b" ") + b"\n")
            await answer(writer, head, body[:200])
    writer.close()


async def answer(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    if b"die now" in body:
        os._exit(1)
    if b"die later" in body:
        time.sleep(LATER_S)  # noqa: ASYNC251 (as an engine does whose event loop computes)
        os._exit(1)
    if b"die head" in body:
        writer.write(HEAD % len(OK))
        await asyncio.sleep(GAP_S)
        os._exit(1)
    if found := re.search(rb"(die|stream) (\d+)", body):
        await stream(writer, head, int(found[2]), dies=found[1] == b"die")
        return
    if found := re.search(rb"take ([\d.]+)", body):
        await asyncio.sleep(float(found[1]))
    writer.write(HEAD % len(OK) + OK)
    await writer.drain()


async def stream(writer: asyncio.StreamWriter, head: bytes, events: int, *, dies: bool) -> None:
    resumed = re.search(rb"(?i)x-slipway-resume: \S+\.(\d+)\.", head)
    begin = int(resumed[1]) if resumed else 0
    writer.write(STREAM_HEAD)
    for n in range(begin + 1, (begin if dies else 0) + events + 1):
        event = b": %d.%08x %d\ndata: {}\n\n" % (n, n, n)
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(GAP_S)
    if dies:
        os._exit(1)
    done = b"data: [DONE]\n\n"
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
    await writer.drain()


async def main(port: int, log: str, idle_s: float) -> None:
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    server = await asyncio.start_server(
        lambda reader, writer: serve(reader, writer, written, idle_s), "127.0.0.1", port, limit=1 << 24
    )
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
