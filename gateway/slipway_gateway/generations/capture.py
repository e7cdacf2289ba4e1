"""Takes the request and the response of one generation, as far as both may be kept."""

import asyncio
import hmac
from collections.abc import Mapping
from typing import NamedTuple

from aiohttp import hdrs

from ..limits.budget import Account
from .rows import NO_MEMORY, TOO_LONG

_SLICE_BYTES = 256 << 10  # hashed at once: other requests wait meanwhile


def hash_of(key: bytes, tenant: str) -> "hmac.HMAC":
    """The hash of a prompt or response: HMAC-SHA-256 of the tenant's name, a NUL and the bytes.

    Equal texts of two tenants have different hashes, and without the key no guess can be checked.
    """
    return hmac.new(key, tenant.encode() + b"\0", "sha256")


class CaptureTerms(NamedTuple):
    """`hash_key`: of hashes. `most_bytes`: of each of both contents.

    `why`: of `rows.OMISSIONS`, where no contents may be kept; empty: they may.
    """

    hash_key: bytes
    most_bytes: int
    why: str = ""


class GenerationCapture:
    """One generation. `route`: whose owner allowed it; `tenant`: who allowed it."""

    def __init__(
        self, body: bytes, account: Account, terms: CaptureTerms, *, route: str, tenant: str, path: str
    ) -> None:
        key, most_bytes, why = terms
        self.route, self.tenant, self.path = route, tenant, path
        self.status, self.encoding = 0, ""
        self.input_bytes, self.output_bytes = len(body), 0
        self.input_omitted = why or (TOO_LONG if len(body) > most_bytes else "")
        self.output_omitted = why
        self._body, self._account, self._most_bytes = body, account, most_bytes
        self._input_hash, self._output_hash = hash_of(key, tenant), hash_of(key, tenant)
        self._parts: list[bytes] = []

    async def hash_input(self) -> None:
        """Must be called once, before the request is sent."""
        for begin in range(0, len(self._body), _SLICE_BYTES):
            if begin:
                await asyncio.sleep(0)
            self._input_hash.update(memoryview(self._body)[begin : begin + _SLICE_BYTES])
        if self.input_omitted:
            self._body = b""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the response was written. `headers`: for the client."""
        self.status, self.encoding = status, headers.get(hdrs.CONTENT_ENCODING, "")

    def add(self, data: bytes) -> None:
        """The next bytes of the body were written to the client."""
        self.output_bytes += len(data)
        self._output_hash.update(data)
        if self.output_omitted:
            return
        if self.output_bytes > self._most_bytes:
            self._omit(TOO_LONG)
        elif self._account.grow(len(data)):
            self._omit(NO_MEMORY)
        else:
            self._parts.append(data)

    def _omit(self, why: str) -> None:
        self.output_omitted = why
        self._parts.clear()

    @property
    def input(self) -> bytes | None:
        return None if self.input_omitted else self._body

    @property
    def output(self) -> bytes | None:
        return None if self.output_omitted else b"".join(self._parts)

    @property
    def hashes(self) -> tuple[str, str]:
        """Of the request and of the response, in hexadecimal digits."""
        return self._input_hash.hexdigest(), self._output_hash.hexdigest()
