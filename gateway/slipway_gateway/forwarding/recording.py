"""Stands between a response and its client, and gives a copy of what the client gets to the log of generations."""

from typing import Any, Protocol

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from .relay import WholeWriter
from .stand_ins import with_writer


class Copy(Protocol):
    """Takes a response as its client gets it."""

    def begin(self, status: int, headers: "CIMultiDict[str]") -> None: ...

    def add(self, data: bytes) -> None: ...


def recorded(request: web.Request, copy: Copy) -> web.Request:
    """The request, whose response goes to `copy` too. Its body has been read."""
    writer = request.writer
    if isinstance(writer, WholeWriter):
        return with_writer(request, _WholeCopyingWriter(request.writer, writer, copy))
    return with_writer(request, _CopyingWriter(writer, copy))


class _CopyingWriter(AbstractStreamWriter):
    """Writes to another writer; what that has taken goes to the copy."""

    def __init__(self, writer: AbstractStreamWriter, copy: Copy) -> None:
        self._writer, self._copy = writer, copy

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        self._copy.begin(int(status_line.split(" ", 2)[1]), headers)
        await self._writer.write_headers(status_line, headers)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        await self._writer.write(chunk)
        if chunk:
            self._copy.add(bytes(chunk))

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self._writer.write_eof(chunk)
        if chunk:
            self._copy.add(chunk)

    async def drain(self) -> None:
        await self._writer.drain()

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        self._writer.enable_compression(encoding, strategy)

    def enable_chunking(self) -> None:
        self._writer.enable_chunking()

    def send_headers(self) -> None:
        self._writer.send_headers()

    @property
    def transport(self) -> Any:
        return self._writer.transport

    # aiohttp reads and sets these, as attributes of a writer.

    @property
    def buffer_size(self) -> int:
        return self._writer.buffer_size

    @buffer_size.setter
    def buffer_size(self, size: int) -> None:
        self._writer.buffer_size = size

    @property
    def output_size(self) -> int:
        return self._writer.output_size

    @output_size.setter
    def output_size(self, size: int) -> None:
        self._writer.output_size = size

    @property
    def length(self) -> int | None:
        return self._writer.length

    @length.setter
    def length(self, length: int | None) -> None:
        self._writer.length = length


class _WholeCopyingWriter(_CopyingWriter, WholeWriter):
    """The same for a writer without a connection, which may take a response at once."""

    def __init__(self, writer: AbstractStreamWriter, whole: WholeWriter, copy: Copy) -> None:
        """`writer` and `whole`: the same object."""
        super().__init__(writer, copy)
        self._whole, self.remembers = whole, whole.remembers

    def take_whole(self, status: int, headers: "CIMultiDict[str]", body: bytes) -> None:
        """Raises UnusableResponse: the writer has no room."""
        self._whole.take_whole(status, headers, body)
        self._copy.begin(status, headers)
        self._copy.add(body)
