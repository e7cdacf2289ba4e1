"""Reads an object as one version: what is read after a broken connection has the ETag of what was read before."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime

import aiohttp
from yarl import URL

from slipway_process.network.guarded import guard_listed
from slipway_process.network.listed_hosts import ListedHosts

from .listed import ObjectName, ObjectStore
from .signing import Credentials, path_of, signed_headers

_STALLED_S, _CONNECT_S = 30.0, 10.0
_CHUNK_BYTES = 64 << 10
_MAX_HEADER_BYTES = 8192
_ATTEMPTS = 3
_BACKOFF_S = 0.5
_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15})")
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


class ObjectRefused(Exception):
    """An object cannot be read. The message is the end of a sentence that begins with the object.

    `code`: of `CODES`. No text of the store's is in it: a store may write credentials or addresses into its errors.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# The status of the response for each code.
CODES = {
    "object_not_found": 400,
    "object_access_denied": 400,
    "object_encoded": 400,
    "object_changed": 409,
    "file_too_large": 413,
    "object_store_failed": 502,
    "object_store_unavailable": 503,
}


class _Broken(Exception):
    """The connection broke, or the store is busy: another attempt may succeed."""


class ObjectReader:
    """Reads one object of a store, at most `most_bytes` of it."""

    def __init__(self, store: ObjectStore, name: ObjectName, most_bytes: int) -> None:
        self._store, self._most_bytes = store, most_bytes
        self._path = path_of(name.bucket, name.key)
        self._credentials = Credentials(
            store.region, store.access_key_id, store.secret_access_key, store.session_token or ""
        )
        self._etag, self._size_bytes, self._at = "", 0, 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the object. The caller bounds the time, and closes the iterator.

        Raises:
            ObjectRefused: what came before it is no whole object then.
        """
        hosts, failures = ListedHosts(loopback=self._store.is_loopback), 0
        while True:
            at, guard = self._at, guard_listed(hosts)
            try:
                async with (
                    guard.session(max_field_size=_MAX_HEADER_BYTES) as session,
                    aclosing(self._attempt(session)) as chunks,
                ):
                    async for chunk in chunks:
                        yield chunk
                return
            # A TimeoutError is an OSError.
            except (aiohttp.ClientError, OSError, _Broken):
                if guard.refusal:
                    raise ObjectRefused("object_store_failed", "is at an address that is reserved") from None
            failures = 1 if self._at > at else failures + 1
            if failures >= _ATTEMPTS:
                raise ObjectRefused("object_store_unavailable", "cannot be read now: its store does not answer")
            await asyncio.sleep(_BACKOFF_S * failures)

    async def _attempt(self, session: aiohttp.ClientSession) -> AsyncGenerator[bytes, None]:
        """What is left of the object. Raises _Broken, ObjectRefused, or an error of aiohttp."""
        url = URL(self._store.endpoint.rstrip("/") + self._path, encoded=True)
        more = {"range": f"bytes={self._at}-", "if-match": self._etag} if self._etag else {}
        host = url.raw_authority if url.explicit_port and not url.is_default_port() else url.raw_host or ""
        headers = signed_headers(host, self._path, more, self._credentials, datetime.now(UTC))
        # Not signed, because proxies between rewrite it.
        headers["accept-encoding"] = "identity"
        async with asyncio.timeout(_CONNECT_S + _STALLED_S):
            response = await session.get(url, headers=headers, allow_redirects=False)
        async with response:
            self._check(response)
            while True:
                async with asyncio.timeout(_STALLED_S):
                    chunk = await response.content.read(_CHUNK_BYTES)
                if not chunk:
                    break
                self._at += len(chunk)
                if self._at > self._size_bytes:
                    raise ObjectRefused("object_store_failed", "has more bytes than its store reports")
                yield chunk
        if self._at < self._size_bytes:
            raise _Broken

    def _check(self, response: aiohttp.ClientResponse) -> None:
        """Whether it is the object, and the same version as before. Raises _Broken or ObjectRefused."""
        status, headers = response.status, response.headers
        if status != (206 if self._etag else 200):
            raise _refusal(status)
        etag = headers.get("ETag", "")
        if headers.get("Content-Encoding", "identity") not in ("identity", "aws-chunked", ""):
            raise ObjectRefused("object_encoded", "has a Content-Encoding: store it as plain lines")
        if not etag or response.content_length is None:
            raise ObjectRefused("object_store_failed", "has no ETag or no length at its store")
        if self._etag:
            found = _RANGE.fullmatch(headers.get("Content-Range", ""))
            if etag != self._etag or not found or (int(found[1]), int(found[2])) != (self._at, self._size_bytes):
                raise _changed()
            return
        self._etag, self._size_bytes = etag, response.content_length
        if self._size_bytes > self._most_bytes:
            raise ObjectRefused("file_too_large", f"exceeds {self._most_bytes} bytes")


def _refusal(status: int) -> Exception:
    if status in _PASSING:
        return _Broken()
    if status in (412, 416):
        return _changed()
    if status == 404:
        return ObjectRefused("object_not_found", "does not exist")
    if status in (401, 403):
        return ObjectRefused("object_access_denied", "may not be read with the credentials that are listed for you")
    return ObjectRefused("object_store_failed", f"cannot be read: its store answered with status {status}")


def _changed() -> ObjectRefused:
    return ObjectRefused("object_changed", "changed while it was read: send the request again")
