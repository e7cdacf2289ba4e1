"""The methods: each call becomes a request of the protocol over HTTP, and its response becomes a message again."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from ..forwarding.stand_ins import Peer
from ..identity.authenticate import RequestIdentity
from ..limits.budget import Account
from ..serving import requester
from ..serving.api import PublicApi, Work
from ..serving.inference import InferenceServer
from ..settings import GatewaySettings
from ..telemetry.metrics import RequestRecord
from ..wire import errors, inference
from ..wire.inference import ModelPath
from . import messages, statuses
from .calls import Call
from .context import CallContext
from .reading import MessageReader
from .statuses import GrpcStatus

SERVICE = "inference.GRPCInferenceService"
UNARY = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer", "RepositoryIndex")
_NOT_READY = (404, 503)  # statuses for which ModelReady answers that the model is not ready, and does not fail


class Methods:
    """The methods of the service, for all calls of one gateway."""

    def __init__(self, api: PublicApi, settings: GatewaySettings, server: InferenceServer) -> None:
        self.api, self.settings = api, settings
        self._answers = {path: answer for path, (_, answer) in server.answers().items()}
        self.cutting = False
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def call(self, context: CallContext, method: str) -> Call:
        """Makes a call, which is not run yet. The client's address is the connection's, whatever the metadata has."""
        headers = statuses.to_headers(context.metadata)
        peer = Peer(context.address, context.certificate)
        return Call(self.settings, method, headers, peer, lambda: self.cutting)

    async def unary(self, name: str, context: CallContext) -> None:
        """Runs a method that takes one message and returns one."""
        call = self.call(context, f"/{SERVICE}/{name}")
        try:
            await self._run(call, name, context)
            if name == "ModelReady" and call.status in _NOT_READY:
                call.status, call.body = 200, b""
                await self.deliver(context, messages.truth(False))
            elif statuses.status_of(call.status) is GrpcStatus.OK:
                await self.deliver(context, self.answer(name, call))
            end(context, call)
        except errors.RequestError as unreadable:
            refuse(context, unreadable.status, str(unreadable), call)
        finally:
            call.close()

    async def _run(self, call: Call, name: str, context: CallContext) -> None:
        async def prepare(call: Call, record: RequestRecord) -> Work:
            with self._account(call, record.identity) as account:
                reader = MessageReader(context.stream, self.settings)
                message = reader.arrived(account)
                if message is None:
                    with self.api.awaiting(record):
                        message = await reader.message(account, self.settings.body_timeout_s)
            if message is None:
                raise errors.invalid("invalid_message", "The call has no message.")
            self.hold(call, record.identity)
            return self.work(name, call, message, context)

        await call.run(self.api, prepare)

    def hold(self, call: Call, identity: RequestIdentity | None) -> Account:
        """Opens the account in which the call counts until it is closed."""
        account = self._account(call, identity)
        call.hold(account)
        return account

    def _account(self, call: Call, identity: RequestIdentity | None) -> Account:
        return self.api.budget.open(requester.client_of(call.request, identity, self.settings))

    def work(self, name: str, call: Call, message: bytes, context: CallContext) -> Work:
        """The work that the API does for a call of a method. Raises RequestError: the message is invalid."""
        path = {"ServerLive": "/v2/health/live", "ServerReady": "/v2/health/ready", "ServerMetadata": "/v2"}.get(name)
        if path:
            return self.api.answered(self._answers[path])
        if name == "RepositoryIndex":
            return self._index(ready_alone=messages.wants_ready_alone(message))
        model = messages.model_of(message)
        if not model.name:
            raise errors.invalid("missing_required_parameter", "The message has no name of a model.", param="model")
        verb = {"ModelInfer": "infer", "ModelReady": "ready"}.get(name, "")
        where = inference.v2(model.name, model.version, verb)
        return self._for_model(call, where, message if verb == "infer" else b"", _remaining(context))

    def _index(self, *, ready_alone: bool) -> Work:
        listed = self._answers["/v2/repository/index"]

        def chosen(tenant: Any) -> Any:
            return [one for one in listed(tenant) if one["state"] == "READY" or not ready_alone]

        return self.api.answered(chosen)

    def _for_model(self, call: Call, where: ModelPath, message: bytes, timeout: str) -> Work:
        path = where.with_model("", where.name)
        call.becomes("POST" if message else "GET", path, message, timeout if message else "")

        async def work(request: web.Request, record: RequestRecord) -> web.StreamResponse:
            return await self.api.routed(request, record, where)

        return work

    def answer(self, name: str, call: Call) -> bytes:
        """The response message of a successful call. Raises RequestError 502: the server's response is none."""
        if name == "ModelInfer":
            check_type(call)
            return call.body
        if name == "ModelMetadata":
            return messages.model_metadata(call.body)
        if name == "ServerMetadata":
            return messages.server_metadata(msgspec.json.decode(call.body))
        if name == "RepositoryIndex":
            return messages.repository_index(msgspec.json.decode(call.body))
        return messages.truth(True)

    async def deliver(self, context: CallContext, message: bytes) -> None:
        """Sends a message. Raises RequestError 408: the client does not read it in time."""
        if context.write_now(message):
            return
        try:
            async with asyncio.timeout(self.settings.stall_timeout_s):
                await context.write(message)
        except TimeoutError:
            raise errors.invalid("stalled", "The client did not read its response in time.", status=408) from None


def check_type(call: Call) -> None:
    """Raises RequestError 502 where a server answered in another format than protobuf."""
    if call.headers.get("Content-Type", "").partition(";")[0] != "application/x-protobuf":
        message = "The server of this model does not answer in protobuf: it has no gRPC through this gateway."
        raise errors.RequestError(502, "bad_response", message)


def end(context: CallContext, call: Call) -> None:
    """Sets status, text and metadata of a call that has its response."""
    context.set_trailing(statuses.trailing(call.headers))
    code = statuses.status_of(call.status)
    if code is not GrpcStatus.OK:
        context.set_status(code, statuses.details_of(call.status, call.body))


def refuse(context: CallContext, http_status: int, text: str, call: Call | None = None) -> None:
    if call is not None:
        context.set_trailing(statuses.trailing(call.headers))
    context.set_status(statuses.status_of(http_status), text)


def _remaining(context: CallContext) -> str:
    seconds = context.remaining_s()
    return "" if seconds is None else statuses.timeout_header(seconds)
