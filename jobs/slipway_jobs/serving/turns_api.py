"""What gateways read before a turn of a conversation, and write after it: they alone call it (`tenancy`)."""

import asyncio
import contextlib
from collections.abc import Iterator
from threading import Event
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from sqlalchemy import Connection

from slipway_contracts.conversations import (
    CONTEXT_PATH,
    MAX_TURN_BYTES,
    TURNS_PATH,
    Context,
    ContextQuery,
    ConversationTurn,
    TurnStored,
)
from slipway_process.response_items import ID, MAX_ITEMS
from slipway_process.shares import Shares

from ..store.conversation_store import ConversationStore
from ..store.database import Database
from ..telemetry import JobsMetrics
from .conversation_errors import refusals
from .fields import is_storable
from .refusal import JobsRefusal, invalid, json_response
from .tenancy import tenant_of

MAX_CONTEXTS = 32  # that are read or written at once; each is some MiB of memory at most
_MAX_QUERY_BYTES = 4096
_MAX_TEXT = 253
_T = TypeVar("_T")
_QUERY, _TURN = msgspec.json.Decoder(ContextQuery), msgspec.json.Decoder(ConversationTurn)


class _GatewayLeft(Exception):
    """A gateway has given a write up, and its client has learned that nothing is stored."""


class TurnsApi:
    def __init__(self, database: Database, store: ConversationStore, metrics: JobsMetrics) -> None:
        self._database, self._store, self._metrics = database, store, metrics
        self._places = Shares(MAX_CONTEXTS)
        # Writes of one tenant wait for one another here, and not at the lock of the database, where each would hold one
        # of the few connections that reads and other tenants need.
        self._writing: dict[str, asyncio.Lock] = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.post(CONTEXT_PATH, self.context), web.post(TURNS_PATH, self.turn)]

    async def context(self, request: web.Request) -> web.StreamResponse:
        query = await _read(request, _QUERY, _MAX_QUERY_BYTES)
        _check_ids(query, ("previous_response_id", "conversation"), ("without", "key"))
        with self._place(request) as tenant, refusals(continues=True):
            context: Context = await self._database.call(self._store.context, tenant, query)
        return json_response(context)

    async def turn(self, request: web.Request) -> web.StreamResponse:
        try:
            # A place before the body: bodies that arrive take memory too.
            with self._place(request) as tenant:
                turn = await _read(request, _TURN, MAX_TURN_BYTES)
                _check_turn(turn)
                added = await self._stored(tenant, turn)
        except BaseException as error:
            self._metrics.conversation_failures.labels(_reason(error)).inc()
            raise
        count = len(turn.input) + len(turn.output)
        if added:
            self._metrics.conversation_items.inc(count)
            self._metrics.conversation_bytes.inc(added)
        return json_response(TurnStored(count, added))

    async def _stored(self, tenant: str, turn: ConversationTurn) -> int:
        """The bytes that a turn added. Its tenant has a place. Raises JobsRefusal."""
        with refusals(continues=True):
            async with self._writing.setdefault(tenant, asyncio.Lock()):
                return await self._write(tenant, turn)

    async def _write(self, tenant: str, turn: ConversationTurn) -> int:
        """Stores a turn; one whose gateway leaves before the transaction ends is undone."""
        left = Event()

        def store(connection: Connection) -> int:
            added = self._store.store(connection, tenant, turn)
            if left.is_set():
                raise _GatewayLeft
            return added

        try:
            return await self._database.call(store)
        except asyncio.CancelledError:
            left.set()
            raise

    @contextlib.contextmanager
    def _place(self, request: web.Request) -> Iterator[str]:
        """One of the places, for the tenant of a request. Raises JobsRefusal 429."""
        tenant = tenant_of(request)
        if not self._places.take(tenant):
            raise JobsRefusal(
                429, "too_many_turns", "Too many conversations are read and written now.", retry_after_s=1
            )
        try:
            yield tenant
        finally:
            self._places.give_back(tenant)
            if tenant not in self._places.taken:
                self._writing.pop(tenant, None)


def _reason(error: BaseException) -> str:
    return error.code if isinstance(error, JobsRefusal) else "database"


async def _read(request: web.Request, decoder: "msgspec.json.Decoder[_T]", limit_bytes: int) -> _T:
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > limit_bytes:
            raise JobsRefusal(413, "request_too_large", f"The request body exceeds {limit_bytes} bytes.")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JobsRefusal(400, "invalid_json", f"The body is not as expected: {error}.") from None


def _check_turn(turn: ConversationTurn) -> None:
    """Raises JobsRefusal."""
    _check_ids(turn, ("id", "previous_response_id", "conversation"), ("key", "model", "revision"))
    if not turn.id or len(turn.input) + len(turn.output) > 2 * MAX_ITEMS:
        raise invalid("id", "A turn has an id, and a bounded number of items.")


def _check_ids(given: Any, ids: tuple[str, ...], texts: tuple[str, ...]) -> None:
    """Raises JobsRefusal: a name is none that a row can have."""
    for name in ids:
        if (value := getattr(given, name)) and not ID.fullmatch(value):
            raise JobsRefusal(404, "response_not_found", f"{name} names nothing that is stored.", param=name)
    for name in texts:
        if (value := getattr(given, name)) and (len(value) > _MAX_TEXT or not is_storable(value)):
            raise invalid(name, f"{name} has at most {_MAX_TEXT} characters.")
