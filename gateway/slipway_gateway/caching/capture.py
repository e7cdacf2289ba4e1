"""Keeps a copy of a response while it is relayed to its client, within a size and the memory of its request."""

from multidict import CIMultiDict

from slipway_contracts.headers import CACHE

from ..limits.budget import Account
from ..quotas.usage import Usage
from ..upstream.exchange import UpstreamResponse
from .entry import Entry, kept_events, kept_headers
from .finality import is_final, is_final_stream


class ResponseCapture:
    """One response. `entry`: once it is whole, final and may be kept; else None. `revision`: that answered."""

    def __init__(
        self, path: str, most_bytes: int, account: Account, shown: str, *, streams: bool, base_revision: str = ""
    ) -> None:
        """`shown`: what the client reads in `X-Slipway-Cache`. `streams`: the client requested a stream.

        `base_revision`: of an adapter, the revision of its base whose responses may be kept.
        """
        self._base_revision = base_revision
        self._path, self._most_bytes, self._account = path, most_bytes, account
        self._shown, self._streams = shown, streams
        self._parts: list[bytes] = []
        self._size = 0
        self._headers: tuple[tuple[str, str], ...] | None = None
        self._is_json = False
        self._ended = False
        self._ok = False  # its status is 200
        self.revision = ""
        self.entry: Entry | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the server sent a whole response with status 200, which may be kept or not."""
        return self._ok and self._ended

    def begin(self, response: UpstreamResponse, sent: "CIMultiDict[str]") -> None:
        """A response begins; `sent` are the headers for the client, to which this adds one."""
        sent[CACHE] = self._shown
        self.revision, self._ok = response.endpoint.revision, response.status == 200
        if response.endpoint.base_revision != self._base_revision:
            return  # a key has the one that was expected
        if self._ok and response.streams_events == self._streams and not (response.length or 0) > self._most_bytes:
            self._headers = kept_headers(response.headers)
            self._is_json = response.headers.get("Content-Type", "").startswith("application/json")

    def add(self, data: bytes) -> None:
        """The next bytes of the body, of a stream whole events, as the client gets them but for their ids."""
        if self._headers is None or self._ended:
            return
        self._size += len(data)
        if self._size > self._most_bytes or self._account.grow(len(data)):
            self._headers = None
            self._parts.clear()
            return
        self._parts.append(data)

    def end(self, usage: Usage | None, now_s: float) -> None:
        """The server has sent the whole response; a later call has no effect. `now_s`: Unix time."""
        if self._ended:
            return
        self._ended = True
        if self._headers is None:
            return
        body = kept_events(self._parts) if self._streams else b"".join(self._parts)
        final = is_final_stream(body) if self._streams else is_final(self._path, body, is_json=self._is_json)
        if final:
            self.entry = Entry(now_s, self.revision, self._headers, body, self._streams, usage)
        self._parts.clear()
