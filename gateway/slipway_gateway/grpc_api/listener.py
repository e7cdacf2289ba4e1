"""The gRPC port: bounded connections and calls, TLS with the API port's certificate, and an end that cuts no call."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from slipway_process.places import SHARE, Places

from ..balancing.published_table import PublishedTable
from ..http2 import header_blocks
from ..http2.connection import Http2Connection
from ..http2.frames import ErrorCode
from ..http2.lifetime import Http2Limits
from ..http2.stream import Stream
from ..limits.budget import Account
from ..serving.api import GRPC_STREAM, PublicApi
from ..serving.inference import InferenceServer
from ..serving.tls import HTTP_2, Handshake, ServerTls
from ..settings import GatewaySettings
from ..token_streams.streams import TokenStreams
from ..wire import errors
from .context import INVALID_TIMEOUT, CallContext
from .generation import TokenStream
from .health import CHECK, HEALTH, WATCH, GrpcHealth
from .methods import SERVICE, UNARY, Methods, refuse
from .statuses import GrpcStatus
from .streams import NAME as STREAM
from .streams import InferStream

log = logging.getLogger(__name__)

_CHECKED_S = 1.0
_CUT_S, _CUT_CHECKS = 1.0, 50
_AGE_SPREAD = 0.1  # ages of connections differ by so much, so that they do not end together
_TIMEOUTS = "The metadata grpc-timeout has up to eight digits and one of H, M, S, m, u and n."
_CONTENT_TYPES = ("application/grpc", "application/grpc+proto")

Run = Callable[[CallContext], Awaitable[None]]


class GrpcServer:
    """The gRPC port of one gateway. `tls`: that of the API port; None without a certificate."""

    def __init__(
        self,
        api: PublicApi,
        published: PublishedTable,
        settings: GatewaySettings,
        tls: ServerTls | None = None,
        *,
        streams: TokenStreams,
    ) -> None:
        self._methods = Methods(api, settings, InferenceServer(published))
        self._settings, self._tls, self._door = settings, tls, api.door()
        self._limits = Http2Limits(
            settings.max_header_bytes,
            settings.header_timeout_s,
            settings.keepalive_timeout_s,
            settings.grpc_connection_age_s,
        )
        self._connections: set[Http2Connection] = set()
        # A stream that waits for its client takes about as much as a connection of the API port.
        self._streams = Places(settings.max_connections, settings.max_client_percentage)
        self._all_closed = asyncio.Event()
        self._server: asyncio.Server | None = None
        health = GrpcHealth(self._methods, published)
        self._known: dict[str, Run] = {
            f"/{HEALTH}/{CHECK}": health.check,
            f"/{HEALTH}/{WATCH}": health.watch,
            f"/{SERVICE}/{STREAM}": lambda context: InferStream(self._methods, context).run(),
            GRPC_STREAM: lambda context: TokenStream(self._methods, streams, context).run(),
        }
        for name in UNARY:
            self._known[f"/{SERVICE}/{name}"] = partial(self._methods.unary, name)

    async def start(self) -> None:
        """Raises OSError: the port cannot be used."""
        loop = asyncio.get_running_loop()
        port = self._settings.grpc_port
        self._server = await loop.create_server(self._accept, self._settings.host or None, port, backlog=1024)
        log.info("taking gRPC calls", extra={"port": self.port})

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def running(self) -> int:
        """Calls whose handler runs."""
        return self._streams.used

    async def drain(self) -> None:
        """Returns when the port is closed, all connections got GOAWAY and all calls have ended.

        Calls that are on their way when a client learns of the end are served (see `Http2Connection.retire`).
        """
        if self._server is not None:
            self._server.close()
        if not self._methods.ending.done():
            self._methods.ending.set_result(None)
        for connection in list(self._connections):
            connection.retire()
        while self._connections:
            self._all_closed.clear()
            await self._all_closed.wait()

    async def close(self) -> None:
        """Cancels the calls that still run."""
        self._methods.cutting = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cut()
        for _ in range(_CUT_CHECKS):  # calls that were cancelled have yet to be counted
            if not self.running:
                break
            await asyncio.sleep(_CUT_S / _CUT_CHECKS)
        for connection in list(self._connections):
            connection.force_close()

    def _accept(self) -> asyncio.Protocol:
        share = 1 + random.uniform(-_AGE_SPREAD, _AGE_SPREAD)
        connection = Http2Connection(self, self._door, self._limits, share)
        return Handshake(self._tls, self._door, connection, HTTP_2) if self._tls else connection

    async def run(self) -> None:
        """Ends connections that are too old, or silent for too long, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_CHECKED_S, self._limits.max_age_s / 4))
            for connection in list(self._connections):
                connection.check(loop.time())

    # -- for connections

    def opened(self, connection: Http2Connection) -> None:
        self._connections.add(connection)
        if self._methods.ending.done():
            connection.retire()

    def closed(self, connection: Http2Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def open_account(self, connection: Http2Connection) -> Account:
        """Streams and what they have not read count for the address; calls count what they read for their tenant."""
        return self._methods.api.budget.open(f"address:{connection.owner}")

    def handle(self, stream: Stream, connection: Http2Connection) -> Coroutine[Any, Any, None] | None:
        """Begins a call; a request that is none, or one too many, has its response at once."""
        context = CallContext(stream, connection)
        if refusal := self._refusal(context) or self._no_place(connection):
            self._end_at_once(context, refusal)
            return None
        if not _is_grpc(stream.head):
            return self._refuse_other(context)
        return self._run(context, self._known.get(context.method) or self._unimplemented)

    def ended(self, stream: Stream, connection: Http2Connection) -> None:
        self._streams.leave(connection.owner)

    def _refusal(self, context: CallContext) -> errors.RequestError | None:
        """Why a call is refused by its head alone."""
        if context.timeout_s == INVALID_TIMEOUT:
            return errors.invalid("invalid_timeout", _TIMEOUTS)
        too_long = context.stream.head.size_bytes > self._settings.max_header_bytes
        return errors.bad_head(too_long=True) if too_long else None

    def _no_place(self, connection: Http2Connection) -> errors.RequestError | None:
        """Takes a place for a stream of this client until `ended`, or returns why there is none."""
        reason = self._streams.take(connection.owner)
        return errors.no_place("streams", of_client=reason == SHARE) if reason else None

    async def _run(self, context: CallContext, run: Run) -> None:
        deadline = _Deadline(context.timeout_s) if context.timeout_s is not None else None
        try:
            await run(context)
        except asyncio.CancelledError:
            if deadline is None or not deadline.has_passed():
                raise
            context.set_status(GrpcStatus.DEADLINE_EXCEEDED, "The deadline of the call has passed.")
        except Exception:
            log.exception("a call failed inside of the gateway")
            refuse(context, 500, str(errors.internal()))
        finally:
            if deadline is not None:
                deadline.end()
        await self._end(context)

    async def _end(self, context: CallContext) -> None:
        if context.stream.is_ready:
            await context.end()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await context.end()

    def _end_at_once(self, context: CallContext, refusal: errors.RequestError) -> None:
        self._methods.api.refuse(refusal, self._methods.call(context, context.method).request)
        refuse(context, refusal.status, str(refusal))
        context.end_now()

    async def _refuse_other(self, context: CallContext) -> None:
        """Responds to what is no gRPC, as to a browser or a probe, by HTTP, when its body has ended."""
        stream = context.stream
        status = 415 if stream.head.method == "POST" else 405
        text = "This port serves gRPC alone: POST with content-type application/grpc."
        refusal = errors.invalid("not_grpc", text, status=status)
        self._methods.api.refuse(refusal, self._methods.call(context, "/unimplemented").request)
        fields = [("content-type", "text/plain"), ("content-length", str(len(text)))]
        try:
            async with asyncio.timeout(self._settings.header_timeout_s):
                while await stream.read():
                    pass
                stream.send_head(header_blocks.encode_status(status) + header_blocks.encode_fields(fields))
                await stream.send(text.encode())
            stream.end()
        except TimeoutError:
            stream.reset(ErrorCode.CANCEL)

    async def _unimplemented(self, context: CallContext) -> None:
        served = f"{SERVICE} with {', '.join((*UNARY, STREAM))}, {GRPC_STREAM[1:]}, and {HEALTH}"
        message = f"{context.method[:200]} is not served: this gateway has {served}."
        call = self._methods.call(context, "/unimplemented")
        refusal = errors.invalid("unimplemented", message, status=501)
        self._methods.api.refuse(refusal, call.request)
        refuse(context, refusal.status, message)


class _Deadline:
    """Cancels the task that it was made in when the time is over. `asyncio.timeout` takes several times as long."""

    def __init__(self, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._is_over = task, False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._cancel)

    def _cancel(self) -> None:
        self._is_over = True
        self._task.cancel()

    def has_passed(self) -> bool:
        """Whether it alone cancelled the task; the task may then go on."""
        return self._is_over and not self._task.uncancel()

    def end(self) -> None:
        self._timer.cancel()


def _is_grpc(head: header_blocks.RequestHead) -> bool:
    found = (value for name, value in head.fields if name == "content-type")
    return head.method == "POST" and next(found, "").partition(";")[0].strip().lower() in _CONTENT_TYPES
