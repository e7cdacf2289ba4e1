"""grpc.health.v1: whether this gateway takes calls, for load balancers; it needs no API key and names no model."""

import asyncio

from slipway_contracts import protobuf
from slipway_process.places import SHARE, Places

from ..balancing.published_table import PublishedTable
from ..wire import errors
from .context import CallContext
from .methods import SERVICE, Methods, refuse
from .reading import MessageReader

HEALTH = "grpc.health.v1.Health"
CHECK, WATCH = "Check", "Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3  # of HealthCheckResponse
MAX_WATCHES = 256
_EVERY_S = 1.0
_KNOWN = ("", SERVICE, HEALTH)


class GrpcHealth:
    def __init__(self, methods: Methods, published: PublishedTable) -> None:
        self._methods, self._published = methods, published
        self._watches = Places(MAX_WATCHES)

    @property
    def serving(self) -> bool:
        return self._published.current is not None and not self._methods.api.draining

    async def check(self, context: CallContext) -> None:
        try:
            if await self._service(context) not in _KNOWN:
                refuse(context, 404, "There is no such service here.")
                return
            await self._methods.deliver(context, protobuf.number_field(1, SERVING if self.serving else NOT_SERVING))
        except errors.RequestError as refusal:
            refuse(context, refusal.status, str(refusal))

    async def watch(self, context: CallContext) -> None:
        """Sends the status at once and after each change, until the gateway ends."""
        if reason := self._watches.take(context.owner):
            refuse(context, 429, str(errors.no_place("watches of its health", of_client=reason == SHARE)))
            return
        try:
            service = await self._service(context)
            last = 0
            while not self._methods.ending.done():
                status = (SERVING if self.serving else NOT_SERVING) if service in _KNOWN else SERVICE_UNKNOWN
                if status != last:
                    await self._methods.deliver(context, protobuf.number_field(1, status))
                    last = status
                await asyncio.wait({self._methods.ending}, timeout=_EVERY_S)
            refuse(context, 503, str(errors.draining()))
        except errors.RequestError as refusal:
            refuse(context, refusal.status, str(refusal))
        finally:
            self._watches.leave(context.owner)

    async def _service(self, context: CallContext) -> str:
        call = self._methods.call(context, f"/{HEALTH}")
        try:
            reader = MessageReader(context.stream, self._methods.settings)
            message = await reader.message(self._methods.hold(call, None), self._methods.settings.body_timeout_s)
            return protobuf.texts(message or b"", 1).get(1, "")
        except protobuf.WireError as error:
            raise errors.invalid("invalid_message", f"The message cannot be read: {error}.") from None
        finally:
            call.close()
