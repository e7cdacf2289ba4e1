"""Follows one request of a tenant: what it reserved, what its server reported, what it is charged in the end."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from ..wire.headers import prompt_tokens
from .bounds import UsageBound
from .estimate import Estimate
from .prices import FREE, Price
from .tenant import INPUT, OUTPUT, REQUESTS
from .usage import (
    MAX_RESPONSE_BYTES,
    MAX_USAGE_BYTES,
    Usage,
    count_events,
    last_usage,
    marked_position,
    usage_of_final_event,
    usage_of_response,
    without_usage_event,
)

# Of a response whose end alone is read: what is kept, which has room for a usage object, and when it is cut to that.
_TAIL_BYTES, _READ_EVERY_BYTES = 2 * MAX_USAGE_BYTES, 64 << 10


class Saved(msgspec.Struct, frozen=True):
    """What responses from a gateway's cache did not cost: tokens that were not computed, and money."""

    usage: Usage
    cost_nano: int
    responses: int = 1


class Charge(msgspec.Struct, frozen=True):
    """What the ledger keeps of one response, or a sum of several. Of charges with one `id` the largest counts."""

    id: str
    tenant: str
    key: str
    model: str
    revision: str
    hour: int  # of Unix time
    usage: Usage
    cost_nano: int
    estimated: int  # of how many the server reported no usage
    requests: int = 1
    saved: Saved | None = None  # of a response from a cache


class Counting(Protocol):
    """What passes the events of a stream on in place of Python."""

    @property
    def count(self) -> tuple[tuple[int, int, int] | None, int, int, bool] | None:
        """The usage that was reported, bytes, tokens, and whether events had marks; None: Python has them."""


class Meter:
    """One request. `begin` is called for a response with status 200, then `add_events` or `add_body`."""

    def __init__(
        self,
        id_: str,
        tenant: str,
        key: str,
        *,
        estimate: Estimate,
        bound: UsageBound | None = None,
        price: Price = FREE,
        model: str = "",
        hour: int = 0,
        resumed_at: int = 0,
        strips_usage: bool = False,
        echoes: bool = False,
    ) -> None:
        """`bound`: of its usage; None: of a request without a body. `resumed_at`: the client has the tokens up to this
        position from before. `strips_usage`: the gateway, not the client, requested the usage of the stream. `echoes`:
        the response repeats JSON of the request."""
        self.id, self.tenant, self.key = id_, tenant, key
        self.model, self.revision, self.hour = model, "", hour
        self.limit_headers: dict[str, str] = {}  # `x-ratelimit-*` of its tenant when the request was admitted
        self.estimate = estimate
        self._bound = bound or UsageBound(b"")
        self.price = price
        self.sent = False  # to a server
        self.answered = False  # by one, whatever the response
        self.begun = False
        self._resumed_at, self._recomputed = resumed_at, 0
        self._goes_on = False
        self.strips_usage = strips_usage
        self._echoes = echoes
        self._reported: Usage | None = None
        self._prompt_tokens: int | None = None
        self._relayed_bytes = 0
        self._output_tokens = 0
        self._marked = False
        self._relay: Counting | None = None
        # Of a response that is no stream: its end, or all of it where it echoes the request. The first part is no copy.
        self._body: bytes | bytearray = b""
        self._unread = False  # whether `_body` may have a usage that `_reported` has not
        self.on_turn: Callable[[Meter], None] = lambda meter: None  # the ledger expects another cost from then on
        self.admitted = False  # by the limits of its tenant
        self._hit: Usage | None = None  # of the response from a cache that it gets, once it is admitted
        self._computed = estimate  # where it gets none

    # -- what happens to it

    def turn_to(self, model: str, price: Price) -> None:
        """Another model answers, at its own price. What was reserved stays."""
        self.model, self.price = model, price
        self.on_turn(self)

    def hit(self, revision: str, usage: Usage) -> None:
        """The request gets a response from a cache, which was computed for another one with this usage. It is one
        request, and takes tokens from limits only where they have a price."""
        self._hit, self.revision = usage, revision
        self.estimate = Estimate(usage.input_tokens, usage.output_tokens) if self.price.hit_percentage else Estimate()

    def miss(self) -> None:
        """It gets no response from a cache after all: what follows costs what any request does."""
        self._hit, self.estimate = None, self._computed

    @property
    def saved(self) -> Saved | None:
        """What a response from a cache did not cost; None for one that was computed."""
        if self._hit is None:
            return None
        return Saved(self._hit, self.price.cost_nano(self._hit) - self.price.hit_cost_nano(self._hit))

    def begin(
        self,
        revision: str,
        headers: Mapping[str, str],
        response_id: str = "",
        *,
        continues: bool = True,
        recomputes: bool = False,
        goes_on: bool = False,
    ) -> None:
        """A response begins. `response_id`: of a stream that another gateway may resume; it is the same at each.

        `continues`: it goes on where the client lost its stream; else it is a response of its own. `recomputes`: its
        server computes the tokens before that position again, which is paid for once more. `goes_on`: it goes on when
        the client leaves, which comes back for the rest.
        """
        self.begun, self._goes_on = True, goes_on
        self._recomputed = self._resumed_at if continues and recomputes else 0
        self._resumed_at = self._resumed_at if continues else 0
        self.revision = revision
        self.id = response_id or self.id
        self._prompt_tokens = prompt_tokens(headers)

    def add_events(self, events: bytes) -> bytes:
        """Counts whole events of the stream as the server sent them; returns them as the client gets them."""
        self._relayed_bytes += len(events)
        position = marked_position(events)
        if position is not None:
            self._marked = True
            self._output_tokens = max(self._output_tokens, position)
        elif not self._marked:
            self._output_tokens += count_events(events)
        found = usage_of_final_event(events) if self._echoes else last_usage(events)
        self._reported = found or self._reported
        return without_usage_event(events) if self.strips_usage else events

    @property
    def counted(self) -> tuple[bool, bool, tuple[int, int, int] | None, int, int, bool]:
        """What the data plane goes on from: whether it removes usage and looks for it in final events alone, the usage
        that was reported, bytes, tokens, and whether events had marks."""
        reported = msgspec.structs.astuple(self._reported) if self._reported else None
        counts = self._relayed_bytes, self._output_tokens, self._marked
        return (self.strips_usage, self._echoes, reported, *counts)

    def relayed_by(self, relay: "Counting | None") -> None:
        """The data plane passes events on from now. None: it no longer does, and `goes_on` has what it counted."""
        self._relay = relay

    def goes_on(self, reported: tuple[int, int, int] | None, relayed_bytes: int, tokens: int, *, marked: bool) -> None:
        """The data plane has passed events on."""
        self._reported = Usage(*reported) if reported else None
        self._relayed_bytes, self._output_tokens, self._marked = relayed_bytes, tokens, marked

    def add_body(self, chunk: bytes) -> None:
        """Keeps a part of a response that is no stream, for its usage. It runs for every part, so it reads nothing."""
        self._relayed_bytes += len(chunk)
        if self._echoes and len(self._body) > MAX_RESPONSE_BYTES:
            return  # it is too long to be read
        self._unread = True
        if not self._body:
            self._body = chunk
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += chunk
        if not self._echoes and len(self._body) > _READ_EVERY_BYTES:
            self._report()
            del self._body[:-_TAIL_BYTES]

    def _report(self) -> Usage | None:
        """The usage as the server reported it so far; None without a report."""
        if self._unread:
            self._unread = False
            body = bytes(self._body)
            if self._echoes:
                self._reported = usage_of_response(body) if len(body) <= MAX_RESPONSE_BYTES else None
            else:
                self._reported = last_usage(body) or self._reported
        return self._reported

    # -- what it comes to

    @property
    def usage(self) -> Usage:
        """The usage so far, within the request's bound: as the server reported it, else as counted here.

        A prompt's length may be the estimate.
        """
        return self._bound.clamp(self._claimed, self._resumed_at + self._relayed_bytes)

    @property
    def implausible(self) -> Usage | None:
        """The usage that the server reported, if the request cannot have caused it; else None."""
        claimed = self._claimed
        return None if self.estimated or claimed == self.usage else claimed

    @property
    def _claimed(self) -> Usage:
        if reported := self._report():
            return reported
        prompt = self.estimate.input_tokens if self._prompt_tokens is None else self._prompt_tokens
        return Usage(prompt, max(self._output_tokens, self._recomputed))

    @property
    def estimated(self) -> bool:
        return self._report() is None and not (self._marked and self._prompt_tokens is not None)

    @property
    def expected_nano(self) -> int:
        """The cost of the tokens that the request reserves, in billionths of the currency."""
        if self._hit is not None:
            return self.price.hit_cost_nano(self._hit)
        return self.price.cost_nano(Usage(self.estimate.input_tokens, self.estimate.output_tokens))

    def charge(self) -> Charge | None:
        """What the ledger keeps of the request; None before a response begins, when there is nothing to pay for."""
        about = (self.id, self.tenant, self.key, self.model, self.revision, self.hour)
        if self._hit is not None:
            cost_nano = self.price.hit_cost_nano(self._hit)
            return Charge(*about, Usage(), cost_nano, estimated=False, saved=self.saved) if self.admitted else None
        if not self.begun:
            return None
        if self._relay and (count := self._relay.count):  # the ledger looks at streams that run
            reported, relayed_bytes, tokens, marked = count
            self.goes_on(reported, relayed_bytes, tokens, marked=marked)
        usage = self.usage
        about = (self.id, self.tenant, self.key, self.model, self.revision, self.hour)
        return Charge(*about, usage, self.price.cost_nano(usage), int(self.estimated))

    def used(self, *, left: bool) -> dict[str, int]:
        """Amounts by limit that the request is charged in the end; a limit that is not in it keeps its reservation.

        `left`: the client closed the connection before the end of the response.

        A request that a server has, and whose client left before the response began, keeps its reservation: what was
        generated is not known. So does one whose server goes on without its client. One that no server answered is
        charged nothing, and an error response is one request.
        """
        if self._hit is not None:
            return self.estimate.amounts()
        if not self.begun:
            return {} if left and self.sent else {REQUESTS: int(self.answered), INPUT: 0, OUTPUT: 0}
        usage = self.usage
        output = max(0, usage.output_tokens - self._resumed_at + self._recomputed)
        unknown = left and self._report() is None and (self._goes_on or not self._output_tokens)
        if unknown and output <= self.estimate.output_tokens:
            return {REQUESTS: 1, INPUT: usage.input_tokens}
        return {REQUESTS: 1, INPUT: usage.input_tokens, OUTPUT: output}
