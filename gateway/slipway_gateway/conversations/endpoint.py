"""Runs a turn of a conversation: its context, the request of any server, its response, and the write at its end."""

from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from msgspec import Raw
from multidict import CIMultiDict

from slipway_contracts.conversations import ContextQuery, ConversationTurn
from slipway_contracts.headers import FALLBACK, REVISION
from slipway_process import json_bounds
from slipway_process.response_items import InvalidItem, stored_item

from ..forwarding import bodies
from ..forwarding.stand_ins import ResponseCollector, collected, unframed, with_writer
from ..limits.budget import Account
from ..routing.table import base_revision
from ..settings import GatewaySettings
from ..telemetry.metrics import RequestRecord
from ..upstream.exchange import Stickiness
from ..wire import errors, sse
from . import turn_request
from .turn_request import TurnRequest, too_long
from .turn_response import FINAL, MAX_RESPONSE_BYTES, Event, EventReader, TurnView, WrittenResponse, written_response
from .turns import ConversationTurns

# How often a request is sent again with fewer items, where its client lets the oldest ones be left out.
MAX_SHORTENED = 8
_STEP_BYTES = 4 << 10  # memory of what is held is counted in steps of this size
_NOT_SERVED = (404, 405, 501)

# Serves a request with this body, at the revision of the turn before it where that serves.
Run = Callable[[web.Request, bytes, Stickiness], Awaitable[web.StreamResponse]]


class TurnCall:
    """One request to `/v1/responses` that stores or continues something."""

    def __init__(
        self,
        request: web.Request,
        record: RequestRecord,
        settings: GatewaySettings,
        account: Account,
        turns: ConversationTurns,
    ) -> None:
        self._request, self._record, self._settings = request, record, settings
        self._account, self._turns = account, turns
        self._tenant = record.identity.name if record.identity else ""
        self._before = Stickiness()

    async def run(self, body: bytes, run: Run, *, stores_by_default: bool) -> web.StreamResponse:
        """Raises RequestError."""
        turn: TurnRequest | None = await self._with_context(await self._read(body, stores_by_default))
        assert turn is not None
        for _ in range(MAX_SHORTENED):
            writer = _TurnWriter(self, turn)
            answer = await run(with_writer(self._request, writer), self._body(turn), self._before)
            if writer.out is not None:
                return writer.out
            status, headers, content = collected(writer, answer, self._record.code)
            if turn.continues and errors.reports_context_too_long(status, content):
                turn = turn.shortened() if turn.truncates else None
                if turn is None:
                    raise too_long()
                continue
            return await self._whole(writer, status, headers, content)
        raise too_long()

    async def _read(self, body: bytes, stores_by_default: bool) -> TurnRequest:
        try:
            for _ in json_bounds.slices(body):
                await bodies.let_others_run(body)
        except json_bounds.TooManyValues as error:
            raise errors.invalid("too_many_values", f"The request body {error}.") from None
        return turn_request.read(body, self._request.headers, stores_by_default=stores_by_default)

    async def _with_context(self, turn: TurnRequest) -> TurnRequest:
        """The turn with the items before it. Raises RequestError."""
        if not turn.continues:
            return turn
        query = ContextQuery(
            turn.previous_response_id,
            turn.conversation,
            turn.attempt,
            turn.key,
            max_bytes=max(1, self._settings.max_body_bytes - sum(map(len, turn.items))),
            truncates=turn.truncates,
        )
        context = await self._turns.context(self._tenant, query, self._record.request_id)
        self._before = Stickiness(context.model, context.revision)
        items = [bytes(item) for item in context.items]
        if self._account.grow(sum(map(len, items))):
            raise errors.overloaded("The gateway has no memory for the items of this conversation now.")
        return turn.with_context(items, context.dropped)

    def _body(self, turn: TurnRequest) -> bytes:
        body = turn.body()
        if len(body) > self._settings.max_body_bytes:
            raise too_long() if turn.continues else errors.too_large(self._settings.max_body_bytes)
        if self._account.grow(len(body)):
            raise errors.overloaded("The gateway has no memory for the items of this conversation now.")
        return body

    async def _whole(
        self, writer: "_TurnWriter", status: int, headers: "CIMultiDict[str]", content: bytes
    ) -> web.StreamResponse:
        response = written_response(content) if status == 200 else None
        if response is not None:
            stored = await self.store(writer.turn, headers, response)
            content = self.view(writer.turn, headers).encoded(response, stored=stored)
        elif status == 200:
            self.lost(writer.turn)
        elif status in _NOT_SERVED and not errors.code_and_message(content)[0]:
            # Not an error of OpenAI's API: the engine has no such path.
            message = "The engine of this model has no /v1/responses: use /v1/chat/completions."
            raise errors.invalid("responses_not_supported", message, status=404, param="model")
        kind = headers.get(hdrs.CONTENT_TYPE, "application/json")
        return web.Response(body=content, status=status, headers=unframed(headers, kind))

    def view(self, turn: TurnRequest, headers: "CIMultiDict[str]") -> TurnView:
        """What the client learns about a response with these headers."""
        now, before = self._place(headers), self._before
        is_moved = bool(before.revision and now.revision) and now != before
        return TurnView(turn, f"{before.route}/{before.revision}" if is_moved else "")

    async def store(self, turn: TurnRequest, headers: "CIMultiDict[str]", response: WrittenResponse) -> bool:
        """Whether the turn with this response is stored now; False also where its client does not want that."""
        if not turn.stores:
            return False
        try:
            output = [Raw(stored_item(item, "output")) for item in response.output]
        except InvalidItem:
            output = []
        if not response.is_storable or len(output) < len(response.output):
            self._turns.unstorable()
            return False
        place = self._place(headers)
        shown = self.view(turn, headers).encoded_without_output(response)
        written = ConversationTurn(
            response.id,
            Raw(shown),
            [Raw(item) for item in turn.items],
            output,
            place.route,
            place.revision,
            turn.previous_response_id,
            turn.conversation,
            turn.key,
        )
        return await self._turns.store(self._tenant, written, self._record.request_id)

    def lost(self, turn: TurnRequest) -> None:
        """The response of a turn passes without being read: it is not stored."""
        if turn.stores:
            self._turns.unstorable()

    def _place(self, headers: "CIMultiDict[str]") -> Stickiness:
        """Where the response comes from; nowhere that a later turn could go, where another deployment stood in."""
        if FALLBACK in headers:
            return Stickiness()
        return Stickiness(self._record.route, base_revision(headers.get(REVISION, "")))

    async def open(self, headers: "CIMultiDict[str]") -> web.StreamResponse:
        """Begins the stream of the client."""
        out = web.StreamResponse(headers=unframed(headers, sse.CONTENT_TYPE))
        await out.prepare(self._request)
        return out


class _TurnWriter(ResponseCollector):
    """Writes a stream to the client, with what is stored in its events; collects any other response. `out`: the stream.

    The last event waits until the turn is stored, or cannot be.
    """

    def __init__(self, call: TurnCall, turn: TurnRequest) -> None:
        super().__init__(MAX_RESPONSE_BYTES)
        self.account = call._account
        self._call, self.turn = call, turn
        self._events = EventReader()
        self._counted_bytes = 0
        self._is_final = False  # the last event came: others behind it pass as they are
        self.out: web.StreamResponse | None = None

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        await super().write_headers(status_line, headers)
        if self.status == 200 and headers.get(hdrs.CONTENT_TYPE, "").startswith(sse.CONTENT_TYPE):
            self.out = await self._call.open(headers)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        if self.out is None:
            await super().write(chunk)
            return
        read, passed = self._events, self._events.passes
        for event in read.feed(bytes(chunk)):
            await self.out.write(await self._shown(event))
        if read.held_bytes - self._counted_bytes >= _STEP_BYTES and not self._has_room(read.held_bytes):
            await self.out.write(read.give_up().data)
        if read.passes and not passed and not self._is_final:
            self._call.lost(self.turn)

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self.write(chunk)
        self.ended = True
        if self.out is not None:
            if rest := self._events.rest():
                await self.out.write(rest)
            await self.out.write_eof()

    def _has_room(self, held_bytes: int) -> bool:
        """Counts the event that is not whole yet; returns whether there is room for it."""
        refused = self.account.grow(held_bytes - self._counted_bytes) if self.account else ""
        self._counted_bytes = held_bytes
        return not refused

    async def _shown(self, event: Event) -> bytes:
        if event.response is None or self._is_final:
            return event.data
        stored = self.turn.stores
        if event.kind in FINAL:
            self._is_final = True
            stored = await self._call.store(self.turn, self.headers, event.response)
        elif event.response.status == "failed":
            stored = False
        view = self._call.view(self.turn, self.headers)
        return event.with_response(view.encoded(event.response, stored=stored))
