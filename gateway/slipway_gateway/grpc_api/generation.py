"""slipway.v1.Generation/Stream: one request, whose events are the messages of the call."""

from multidict import CIMultiDict

from ..forwarding.stand_ins import Peer
from ..serving.api import GRPC_STREAM
from ..token_streams.events import Failure, TokenEvent
from ..token_streams.messages import Generate, Resume
from ..token_streams.streams import Caller, StreamRun, TokenStreams, new_id
from ..wire import errors
from . import generation_messages, statuses
from .calls import VERSION
from .context import CallContext
from .methods import Methods, refuse
from .reading import MessageReader


class TokenStream:
    """Runs one call."""

    def __init__(self, methods: Methods, streams: TokenStreams, context: CallContext) -> None:
        self._methods, self._streams, self._context = methods, streams, context
        headers = CIMultiDict(statuses.to_headers(context.metadata))
        peer = Peer(context.address, context.certificate)
        self._caller = Caller(GRPC_STREAM, "POST", VERSION, headers, peer, lambda: methods.cutting)

    async def run(self) -> None:
        try:
            start = await self._read()
        except errors.RequestError as refusal:
            self._streams.refuse(self._caller, refusal)
            refuse(self._context, refusal.status, str(refusal))
            return
        sink = _CallSink(self._methods, self._context, start.id or new_id())
        headers = await self._streams.run(StreamRun(sink.id, start, self._caller, sink))
        self._context.set_trailing(statuses.trailing(headers))

    async def _read(self) -> Generate | Resume:
        """Reads the message of a client that was authenticated. Raises RequestError."""
        methods = self._methods
        call = methods.call(self._context, GRPC_STREAM)
        try:
            identity = await methods.api.identify(call.request)
            reader = MessageReader(self._context.stream, methods.settings)
            message = await reader.message(methods.hold(call, identity), methods.settings.body_timeout_s)
            if message is None:
                raise errors.invalid("invalid_message", "The call has no message.")
            return generation_messages.start_of(message)
        finally:
            call.close()


class _CallSink:
    """What the client of a call gets."""

    def __init__(self, methods: Methods, context: CallContext, id_: str) -> None:
        self._methods, self._context, self.id = methods, context, id_
        self._is_gone = False

    async def deliver(self, event: TokenEvent) -> None:
        try:
            await self._methods.deliver(self._context, generation_messages.event_of(self.id, event))
        except errors.RequestError:
            self.stalled()
            raise ConnectionResetError("the client does not read") from None

    async def fail(self, failure: Failure) -> None:
        if self._is_gone:
            return
        error = failure.error
        status = (
            statuses.status_of(failure.status) if failure.status else statuses.status_of_event(error.code, error.type)
        )
        self._context.set_status(status, error.message)

    def stalled(self) -> None:
        self._is_gone = True
        refuse(self._context, 408, "The client did not read its stream in time.")
