"""`Idempotency-Key`: a request that is sent again gets the answer of the first one, and has no effect of its own."""

import asyncio
import hashlib
import logging
import math
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from aiohttp import web
from sqlalchemy import Connection

from slipway_process.database_errors import UNAVAILABLE

from ..store.database import Database
from ..store.file_store import DatabaseFull
from ..store.key_store import KeyAnswer, KeyClaim, KeyInProgress, KeyStore, LostKey, TooManyKeys
from .refusal import JobsRefusal, database_full, invalid
from .tenancy import tenant_of

log = logging.getLogger(__name__)
IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED = "Idempotency-Key", "Idempotent-Replayed"
LEASE_S = 10.0
_KEY = re.compile(r"[\x20-\x7e]{1,255}")


@dataclass(slots=True)
class KeyedAttempt:
    """One attempt to execute a request. `claim`: None without a key, or with a key that has an answer already.

    `recorded`: the answer that an earlier request got. `fingerprint`: of this request, once its body has been read.
    """

    store: KeyStore
    claim: KeyClaim | None = None
    recorded: KeyAnswer | None = None
    fingerprint: str = ""

    def answer(self, connection: Connection, value: object, status: int = 200) -> KeyAnswer:
        """The answer to what this transaction did; recorded in it under the key, if there is a claim.

        Raises:
            LostKey: another process took the key over; the transaction must not be committed.
        """
        answer = KeyAnswer(self.fingerprint, status, msgspec.json.encode(value))
        if self.claim:
            self.store.record(connection, self.claim, answer)
        return answer

    def replay(self, fingerprint: str) -> KeyAnswer | None:
        """The answer that was recorded for the key, or None. Sets the fingerprint of this attempt.

        Raises:
            JobsRefusal: the recorded answer belongs to another path or body.
        """
        self.fingerprint = fingerprint
        if self.recorded is not None and self.recorded.fingerprint != fingerprint:
            message = f"This {IDEMPOTENCY_KEY} came with another path or body before: send another key."
            raise JobsRefusal(422, "idempotency_key_reused", message, param=IDEMPOTENCY_KEY)
        return self.recorded


class IdempotentRequests:
    """Runs each request with a key once, for all processes of one database."""

    def __init__(self, database: Database, store: KeyStore, lease_s: float = LEASE_S) -> None:
        self._database, self._store, self._lease_s = database, store, lease_s

    async def run(
        self, request: web.Request, perform: Callable[[web.Request, KeyedAttempt], Awaitable[KeyAnswer]]
    ) -> web.Response:
        """Executes a request by `perform`, or returns the recorded answer.

        `perform` must change the database only in the transaction in which it records its answer.

        Raises:
            JobsRefusal: raised by `perform`, or the key cannot be used now.
        """
        attempt = await self._begin(request)
        if attempt.claim is None:
            answer = await perform(request, attempt)
        else:
            answer = await self._claimed(attempt.claim, perform(request, attempt))
        response = web.Response(body=answer.body, status=answer.status, content_type="application/json")
        if answer is attempt.recorded:
            response.headers[IDEMPOTENT_REPLAYED] = "true"
        return response

    async def _claimed(self, claim: KeyClaim, performed: Awaitable[KeyAnswer]) -> KeyAnswer:
        renewing = asyncio.create_task(self._renew(claim))
        try:
            return await performed
        except LostKey:
            raise _in_progress(1) from None
        except BaseException:
            # A refusal is not recorded, because it changed nothing. A client that left may send the request again.
            with suppress(*UNAVAILABLE):
                await self._database.call(self._store.release, claim)
            raise
        finally:
            renewing.cancel()

    async def _begin(self, request: web.Request) -> KeyedAttempt:
        given = request.headers.getall(IDEMPOTENCY_KEY, [])
        if not given:
            return KeyedAttempt(self._store)
        if len(given) != 1 or not _KEY.fullmatch(given[0]):
            raise invalid(IDEMPOTENCY_KEY, f"{IDEMPOTENCY_KEY} must be one text of 1 to 255 ASCII characters.")
        try:
            found = await self._database.call(self._store.begin, tenant_of(request), given[0])
        except TooManyKeys:
            message = f"This tenant has as many keys as are kept: send the request without {IDEMPOTENCY_KEY}, or later."
            raise JobsRefusal(
                429, "too_many_idempotency_keys", message, param=IDEMPOTENCY_KEY, retry_after_s=300
            ) from None
        except DatabaseFull:
            raise database_full(IDEMPOTENCY_KEY) from None
        if isinstance(found, KeyInProgress):
            raise _in_progress(math.ceil(found.left_s))
        if isinstance(found, KeyAnswer):
            return KeyedAttempt(self._store, recorded=found)
        return KeyedAttempt(self._store, claim=found)

    async def _renew(self, claim: KeyClaim) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._database.call(self._store.renew, claim)
            except Exception as error:
                log.warning("the lease of an idempotency key is not renewed: %s", error)


def fingerprint_of(request: web.Request, content: bytes) -> str:
    """SHA-256 of method, path and `content`: the body, or a digest of it."""
    return hashlib.sha256(f"{request.method} {request.path}\0".encode() + content).hexdigest()


def _in_progress(retry_after_s: int) -> JobsRefusal:
    message = f"A request with this {IDEMPOTENCY_KEY} is in progress."
    return JobsRefusal(
        409, "idempotency_key_in_progress", message, param=IDEMPOTENCY_KEY, retry_after_s=max(1, retry_after_s)
    )
