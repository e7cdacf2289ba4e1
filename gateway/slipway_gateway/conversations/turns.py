"""Reads the context of a turn from the jobs process, and writes turns there."""

import asyncio
import time

import aiohttp
import msgspec

from slipway_contracts.conversations import (
    CONTEXT_PATH,
    MAX_TURN_BYTES,
    TURNS_PATH,
    Context,
    ContextQuery,
    ConversationTurn,
)

from ..telemetry.metrics import GatewayMetrics
from ..upstream.jobs_process import JobsBackend
from ..wire import errors

CONTEXT_TIMEOUT_S = 5.0
# After the end of the model's answer, which the client awaits meanwhile.
WRITE_TIMEOUT_S = 2.0
_AGAIN_S = 0.1
# What a client gets of the errors of the jobs process; others are those of the gateway.
_PASSED = frozenset({400, 404, 413, 429, 500})
STORED, REFUSED, AWAY, UNSTORABLE = "stored", "refused", "away", "unstorable"


class ConversationTurns:
    """Turns of conversations, at the jobs process."""

    def __init__(self, jobs: JobsBackend, metrics: GatewayMetrics) -> None:
        self._jobs, self._metrics = jobs, metrics

    async def context(self, tenant: str, query: ContextQuery, request_id: str) -> Context:
        """
        Raises:
            RequestError: there is no such response or conversation of the tenant (404), its items are too long (400),
                or the jobs process cannot be reached (503).
        """
        try:
            async with asyncio.timeout(CONTEXT_TIMEOUT_S):
                status, body = await self._jobs.post(CONTEXT_PATH, tenant, msgspec.json.encode(query), request_id)
            if status == 200:
                return msgspec.json.decode(body, type=Context)
        except (aiohttp.ClientError, OSError, TimeoutError, LookupError, msgspec.MsgspecError):
            raise away() from None
        code, message = errors.code_and_message(body)
        if status not in _PASSED or not code:
            raise away()
        raise errors.RequestError(status, code, message, param=_param_of(body))

    async def store(self, tenant: str, turn: ConversationTurn, request_id: str) -> bool:
        """Writes a turn; returns whether it is stored. A write that breaks is repeated within `WRITE_TIMEOUT_S`."""
        body = msgspec.json.encode(turn)
        result = UNSTORABLE if len(body) > MAX_TURN_BYTES else AWAY
        ends_s = time.monotonic() + WRITE_TIMEOUT_S
        while result == AWAY and (left_s := ends_s - time.monotonic()) > 0:
            result = await self._write(tenant, body, request_id, left_s)
            if result == AWAY:
                await asyncio.sleep(min(_AGAIN_S, max(0.0, ends_s - time.monotonic())))
        self._metrics.turn_ended(result)
        return result == STORED

    def unstorable(self) -> None:
        """A turn whose response cannot be stored, such as one without an id."""
        self._metrics.turn_ended(UNSTORABLE)

    async def _write(self, tenant: str, body: bytes, request_id: str, left_s: float) -> str:
        try:
            async with asyncio.timeout(left_s):
                status, _ = await self._jobs.post(TURNS_PATH, tenant, body, request_id)
        except (aiohttp.ClientError, OSError, TimeoutError, LookupError):
            return AWAY
        if status == 200:
            return STORED
        return AWAY if status >= 500 or status == 429 else REFUSED


class _Error(msgspec.Struct):
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


def _param_of(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.param
    except msgspec.MsgspecError:
        return None


def away() -> errors.RequestError:
    message = "Conversations cannot be reached now; try again shortly."
    return errors.RequestError(503, "conversations_unavailable", message, retry_after_s=5)
