"""This process's end of one process that reads: starts it, gives it a job, waits for the answer, ends it."""

import asyncio
import socket
import sys

import msgspec

from ... import environment
from .messages import MAX_MESSAGE_BYTES, SIZE, Begin, FromChild, Job, Ready, ToChild, encode, from_child

START_S = 60.0
BUFFER_BYTES = 1 << 20


class ProcessEnded(Exception):
    """The process ended, or sent what is no answer."""


class ReadingProcess:
    """One process. Start it once; nothing else may be called after `end`."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self, begin: Begin) -> None:
        """Start the process, and wait until it has loaded the tokenizer; the first job waits for the template.

        Raises:
            ProcessEnded: it did not begin as it must.
        """
        own_end, other_end = socket.socketpair()
        with other_end:
            self._reader, self._writer = await asyncio.open_connection(sock=own_end, limit=BUFFER_BYTES)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "slipway_server.http.reading.child", str(other_end.fileno())),
                pass_fds=(other_end.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment.for_texts(),
            )
        try:
            answer = await self._exchange(begin, START_S)
        except TimeoutError:
            raise ProcessEnded(f"It has not loaded the tokenizer within {START_S:.0f} s.") from None
        if not isinstance(answer, Ready):
            raise ProcessEnded("It does not begin as it must.")

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self._reader.at_eof()

    async def ask(self, job: Job, timeout_s: float) -> FromChild:
        """The answer to a job.

        Raises:
            ProcessEnded: the process is gone.
            TimeoutError: there was no answer in time. Only `end` may be called after that.
        """
        return await self._exchange(job, timeout_s)

    async def _exchange(self, message: ToChild, timeout_s: float) -> FromChild:
        assert self._writer, "it was started"
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.writelines(encode(message))
                await self._writer.drain()
                (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
                if size > MAX_MESSAGE_BYTES:
                    raise ProcessEnded(f"It sent a message of {size} bytes.")
                return from_child.decode(await self._reader.readexactly(size))
        except (ConnectionError, asyncio.IncompleteReadError):
            raise ProcessEnded("It closed its end of the socket.") from None
        except msgspec.MsgspecError as error:
            raise ProcessEnded(f"It sent what is no answer: {error}.") from None

    async def end(self) -> int:
        """Kill the process; return its exit status, negative for a signal. 0: it was not started."""
        if self._writer:
            self._writer.close()
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self._process.kill()
        return await self._process.wait()
