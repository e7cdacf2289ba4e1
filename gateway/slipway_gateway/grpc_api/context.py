"""One gRPC call on the wire (gRPC over HTTP/2): its metadata, its messages, its deadline and its status."""

import re
from typing import Any
from urllib.parse import quote_from_bytes

from ..http2 import header_blocks
from ..http2.connection import Http2Connection
from ..http2.frames import ErrorCode
from ..http2.stream import Stream
from .statuses import GrpcStatus, Metadata

INVALID_TIMEOUT = -1.0
PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_KEPT_IN_DETAILS = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"  # printable ASCII but "%", as gRPC writes grpc-message
_HEAD = header_blocks.encode_status(200) + header_blocks.encode_fields([("content-type", "application/grpc")])
_IDENTITY_ALONE = header_blocks.encode_fields([("grpc-accept-encoding", "identity")])


class CallContext:
    """A call whose head has arrived. `timeout_s`: the client's; None without one, INVALID_TIMEOUT where it is none."""

    def __init__(self, stream: Stream, connection: Http2Connection) -> None:
        self.stream = stream
        self._connection = connection
        self.method, self.metadata = stream.head.path, stream.head.fields
        self.address, self.owner = connection.address, connection.owner
        self.timeout_s = _timeout_of(stream.head.fields)
        self._began_s = connection.received_s
        self._status, self._details = GrpcStatus.OK, ""
        self._trailing: Metadata = ()
        self._is_within_message = False

    def certificate(self) -> Any:
        """The client's verified certificate as `ssl.SSLSocket.getpeercert` returns it; None: it has none."""
        return self._connection.certificate

    def remaining_s(self) -> float | None:
        """What is left of the client's time, by when its connection brought anything last; None without a limit."""
        if self.timeout_s is None:
            return None
        return self._began_s + self.timeout_s - self._connection.received_s

    def set_status(self, status: GrpcStatus, details: str) -> None:
        """Sets how the call ends; without it, `OK`."""
        self._status, self._details = status, details

    def set_trailing(self, metadata: Metadata) -> None:
        self._trailing = metadata

    def write_now(self, message: bytes) -> bool:
        """Sends a message, where the client and the connection take all of it now; returns whether they do."""
        stream, size = self.stream, PREFIX_BYTES + len(message)
        if not stream.has_room(size):
            return False
        self._send_head()
        stream.send_now(_prefix(message) + message)
        return True

    async def write(self, message: bytes) -> None:
        """Sends a message; returns when the client and the connection have taken all of it."""
        self._is_within_message = True
        await self.stream.ready()
        self._send_head()
        await self.stream.send(_prefix(message) + message)
        self._is_within_message = False

    def _send_head(self) -> None:
        if not self.stream.is_answered:
            self.stream.send_head(_HEAD + _IDENTITY_ALONE)

    async def end(self) -> None:
        """Sends the status; a call within whose message its client stopped reading is reset, for it cannot have one."""
        if self._is_within_message:
            self.stream.reset(ErrorCode.CANCEL)
            return
        if not self.stream.is_ready:
            await self.stream.ready()
        self.end_now()

    def end_now(self) -> None:
        """Sends the status, even if the client reads nothing now."""
        fields = [("grpc-status", str(int(self._status)))]
        if self._details:
            fields.append(("grpc-message", quote_from_bytes(self._details.encode(), safe=_KEPT_IN_DETAILS)))
        block = header_blocks.encode_fields([*fields, *self._trailing])
        self.stream.send_head(block if self.stream.is_answered else _HEAD + block, ends=True)


def _prefix(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4)


def _timeout_of(fields: header_blocks.Fields) -> float | None:
    for name, value in fields:
        if name == "grpc-timeout":
            found = _TIMEOUT.fullmatch(value)
            return int(found[1]) * _UNITS[found[2]] if found else INVALID_TIMEOUT
    return None
