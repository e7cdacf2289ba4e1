"""Who may see batches of tenants: whoever the API server says, by the viewer's own token, which is kept nowhere."""

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from slipway_contracts.batch_list import GROUP, RESOURCE, SUBRESOURCE
from slipway_process.shares import Shares

from .refusal import JobsRefusal

MOST_REVIEWS = 16  # at once; a token gets at most three quarters of them
LONGEST_TOKEN = 16_384
_MOST_BYTES = 64 << 10
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class Viewers:
    """One review for each request: a right that is withdrawn counts at once."""

    def __init__(self, session: aiohttp.ClientSession, api_server: str) -> None:
        self._session, self._url = session, api_server + _PATH
        self._shares = Shares(MOST_REVIEWS)

    async def check(self, authorization: str, tenant: str | None) -> None:
        """Returns where the user of a token may see batches. `tenant`: whose; None: of all.

        Raises:
            JobsRefusal: there is no token, its user may not (401, 403), or the API server does not say (429, 503).
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            raise JobsRefusal(401, "no_token", "Send the token of a user of the API server as a bearer token.")
        share = hashlib.sha256(token.encode()).hexdigest()
        if not self._shares.take(share):
            raise JobsRefusal(429, "too_many_reviews", "Too many lists of batches are read now.", retry_after_s=1)
        try:
            allowed = await self._is_allowed(token, tenant)
        finally:
            self._shares.give_back(share)
        if not allowed:
            verb, whose = ("get", f" {tenant}") if tenant else ("list", "")
            message = f"This user may not {verb} {RESOURCE}/{SUBRESOURCE}.{GROUP}{whose[:100]}."
            raise JobsRefusal(403, "not_allowed", message)

    async def _is_allowed(self, token: str, tenant: str | None) -> bool:
        attributes = {"group": GROUP, "resource": RESOURCE, "subresource": SUBRESOURCE, "verb": "list"}
        if tenant:
            attributes |= {"verb": "get", "name": tenant}
        body = msgspec.json.encode({"spec": {"resourceAttributes": attributes}})
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            # A redirect would carry the token to another address.
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                status, text = answer.status, await _read(answer)
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise _no_answer() from None
        if status == 401:
            raise JobsRefusal(401, "invalid_token", "The API server does not accept this token.")
        if status != 201:
            raise _no_answer()
        try:
            return msgspec.json.decode(text, type=_Review).status.allowed
        except msgspec.DecodeError:
            raise _no_answer() from None


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body; empty where it is longer than any review."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > _MOST_BYTES:
            answer.close()
            return b""
    return bytes(body)


def _no_answer() -> JobsRefusal:
    message = "The API server does not say who may see batches."
    return JobsRefusal(503, "review_unavailable", message, retry_after_s=5)


@contextlib.asynccontextmanager
async def open_viewers(api_server: str, ca_file: str) -> AsyncIterator[Viewers | None]:
    """None without an API server: then there is no list of batches.

    Raises:
        OSError: the file of certificates cannot be read, or has none.
    """
    if not api_server:
        yield None
        return
    context = await asyncio.to_thread(ssl.create_default_context, cafile=ca_file or None)
    connector = aiohttp.TCPConnector(ssl=context, limit=MOST_REVIEWS)
    async with aiohttp.ClientSession(
        connector=connector, timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as session:
        yield Viewers(session, api_server)
