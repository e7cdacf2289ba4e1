"""The engine's connection to the grammar process, which starts with the first grammar and again when it has ended."""

import logging
import mmap
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray

from ... import environment
from .messages import PACKET_BYTES, Advances, Drop, FromGrammars, Hello, Prepare, encode, from_grammars

log = logging.getLogger("slipway.engine")

Words: TypeAlias = NDArray[numpy.int32]

HEADER_BYTES = 64  # as in `process.py`
LIFE_CHECK_S = 1.0  # between checks that the process still runs, while no message comes from it
RESTARTS = 8  # of the parent, each of which loads the tokenizer; a new fork of its worker does not count


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What the grammar process needs of the model: tokenizer file, columns of the logits and stop tokens."""

    tokenizer: Path
    vocabulary: int
    stop_token_ids: tuple[int, ...]


class GrammarsGone(Exception):
    """The grammar process ended more than RESTARTS times and is not started any more."""


class GrammarProcess:
    """The process and a non-blocking socket to it. Messages that the socket cannot take yet go with the next call."""

    def __init__(self, source: GrammarSource, rows: int) -> None:
        self._source, self._rows = source, rows
        self._own, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._own, select.POLLIN)
        self._memory = os.memfd_create("slipway-masks")
        self._masks: Words | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starts, self._looked_s = 0, 0.0
        self._outbox: deque[bytes] = deque()
        self.generation = 0

    def fileno(self) -> int:
        return self._own.fileno()

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def serves(self) -> bool:
        """Whether the process has sent a Hello without a refusal. Nothing is sent to it before."""
        return self._masks is not None

    def start(self) -> None:
        """Starts the process and drops unsent messages. Raises GrammarsGone after RESTARTS restarts."""
        if self._starts > RESTARTS:
            raise GrammarsGone
        self._starts += 1
        self._outbox.clear()
        settings = {
            "tokenizer": str(self._source.tokenizer),
            "vocabulary": self._source.vocabulary,
            "stop_token_ids": self._source.stop_token_ids,
            "rows": self._rows,
            "generation": self._starts << 32,  # each new fork of its worker adds 1
        }
        descriptors = (self._other.fileno(), self._memory)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "slipway_server.engine.grammars.process"),
                *(*map(str, descriptors), msgspec.json.encode(settings).decode()),
            ],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env=environment.for_grammars(),
        )

    def send(self, message: Prepare | Advances | Drop) -> None:
        self._outbox.append(encode(message))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            try:
                self._own.send(self._outbox[0])
            except BlockingIOError:
                return
            self._outbox.popleft()

    def receive(self, timeout_s: float = 0.0) -> list[FromGrammars]:
        """The messages that have come; waits up to `timeout_s` for the first one.

        Restarts a process that has ended. Raises GrammarsGone after RESTARTS restarts.
        """
        self._flush()
        messages: list[FromGrammars] = []
        while self._poll.poll(0 if messages else timeout_s * 1000):
            message = from_grammars.decode(self._own.recv(PACKET_BYTES))
            if isinstance(message, Hello):
                self._meet(message)
            messages.append(message)
        if not messages:
            self._check_life()
        return messages

    def _meet(self, hello: Hello) -> None:
        self.generation = hello.generation
        self._outbox.clear()
        if self._masks is None and hello.words:
            size = HEADER_BYTES + self._rows * hello.words * 4
            mapped = mmap.mmap(self._memory, size, prot=mmap.PROT_READ)
            self._masks = numpy.frombuffer(mapped, numpy.int32, self._rows * hello.words, HEADER_BYTES).reshape(
                self._rows, hello.words
            )

    def _check_life(self) -> None:
        now_s = time.monotonic()
        if self._process is None or now_s - self._looked_s < LIFE_CHECK_S:
            return
        self._looked_s = now_s
        if (status := self._process.poll()) is not None:
            log.warning("the process of grammars ended", extra={"status": status})
            self.start()

    @property
    def bits(self) -> Words:
        """The masks [rows, words], one bit for each token that is allowed. The process writes to them."""
        assert self._masks is not None, "it has sent a mask"
        return self._masks

    def stop(self) -> None:
        """Closes the socket, which ends the grammar process, and waits for its end.

        Not needed when the engine's own process ends: the grammar process ends with it.
        """
        self._own.close()
        self._other.close()
        os.close(self._memory)
        if self._process:
            self._process.wait()
