"""The program that renders chats and reads large bodies: what a stranger wrote costs this process, and no other one.

The system bounds its memory (RLIMIT_DATA), and the process that serves ends it when it takes too long.
"""

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slipway_process import collector, isolation, logs
from slipway_process.serving.errors import HttpError, Refusal

from ...text.chat import Chat, ChatRefused
from ...text.chat_template import ChatTemplate
from ...text.rendering import render
from .messages import (
    MAX_MESSAGE_BYTES,
    MAX_TEXT_BYTES,
    SIZE,
    TOO_MUCH,
    Begin,
    FromChild,
    Job,
    Ready,
    RenderChat,
    Rendered,
    ToChild,
    encode,
    to_child,
    too_much,
)

if TYPE_CHECKING:
    from .large_bodies import LargeBodies

log = logging.getLogger("slipway.http")


class Worker:
    """Does one job after the other."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._bodies = _bodies(begin)
        _isolate(begin)

    def compile_template(self) -> None:
        """Compiling computes what is constant in a template, which may take as long as rendering."""
        self._template = ChatTemplate.of(self._begin.template)
        if self._begin.template.plain is not None and self._template.problem:
            log.warning("no chat completions", extra={"reason": self._template.problem})

    def answer(self, job: Job) -> FromChild:
        try:
            if isinstance(job, RenderChat):
                text = self._prompt(job.chat)
                return Rendered(text if _fits(text) else None)
            assert self._bodies, "this process reads bodies"
            return self._bodies.read(job, self._prompt)
        except ChatRefused as error:
            return Refusal(400, str(error), error.code, error.param)
        except HttpError as error:
            return Refusal.of(error)
        except MemoryError:
            return Refusal(400, too_much(self._begin.memory_bytes), TOO_MUCH, None)

    def _prompt(self, chat: Chat) -> str:
        return render(self._template, chat, self._begin.model)


def _bodies(begin: Begin) -> "LargeBodies | None":
    """What reads bodies: its imports and the tokenizer take more memory than all else."""
    if not begin.folder:
        return None
    from .large_bodies import LargeBodies

    return LargeBodies(begin.model, Path(begin.folder))


def _fits(text: str) -> bool:
    return len(text) <= MAX_TEXT_BYTES and len(text.encode("utf-8", "replace")) <= MAX_TEXT_BYTES


class Wire:
    """This process's end of the socket, blocking. Raises EOFError when the other end is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def receive(self) -> ToChild:
        (size,) = SIZE.unpack(self._take(SIZE.size))
        assert size <= MAX_MESSAGE_BYTES, "the process that serves sends no more"
        return to_child.decode(self._take(size))

    def send(self, message: FromChild) -> None:
        for part in encode(message):
            self._socket.sendall(part)

    def _take(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise EOFError
            rest = rest[count:]
        return data


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that serves decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(EOFError, ConnectionError):
        begin = wire.receive()
        assert isinstance(begin, Begin), "the first message names the model"
        os.nice(begin.niceness)  # on top of the server's: less than that may only the system's administrator have
        logs.configure(begin.log_level)
        worker = Worker(begin)
        wire.send(Ready())
        worker.compile_template()  # in the time of the first job
        collector.spare()
        while True:
            job = wire.receive()
            assert not isinstance(job, Begin), "it begins once"
            wire.send(worker.answer(job))


def _isolate(begin: Begin) -> None:
    """Bounds this process: what it may do, and the memory beyond what it has now."""
    try:
        isolation.isolate(Path(begin.folder or os.devnull))
    except isolation.IsolationError as error:
        # Templates run in Jinja's sandbox everywhere; this would be the second wall.
        log.warning("a process that reads requests is not isolated: %s", error)
    most_bytes = _data_bytes() + begin.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


def _data_bytes() -> int:
    """What counts for RLIMIT_DATA."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmData"].split()[0]) * 1024


if __name__ == "__main__":
    main()
