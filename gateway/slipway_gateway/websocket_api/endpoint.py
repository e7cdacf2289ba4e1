"""All WebSockets of a gateway: who may open one, and the end of all of them."""

from aiohttp import web

from ..serving import requester
from ..serving.api import WEBSOCKET, PublicApi
from ..serving.listener import check_head
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..token_streams.streams import TokenStreams
from ..wire import errors
from . import handshake
from .connection import StreamConnection


class WebSocketEndpoint:
    """Serves `/v1/stream`. Its connections count among those of the port, and its requests in the API."""

    def __init__(
        self, api: PublicApi, streams: TokenStreams, settings: GatewaySettings, metrics: GatewayMetrics
    ) -> None:
        self._api, self._streams, self._settings, self._metrics = api, streams, settings, metrics
        self._connections: set[StreamConnection] = set()
        metrics.websocket_connections.set_function(lambda: len(self._connections))
        api.on_drain.append(self._drain)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """The response to a handshake: its connection, or a refusal that counts as a request."""
        try:
            connection = await self._admitted(request)
        except errors.RequestError as refusal:
            response = self._api.refuse(refusal, request, WEBSOCKET)
            response.force_close()
            return response
        self._connections.add(connection)
        try:
            return await connection.serve()
        finally:
            self._connections.discard(connection)
            self._metrics.websocket_closed(connection.reason or "client")

    async def _admitted(self, request: web.Request) -> StreamConnection:
        """Raises RequestError: the client may not connect, or not now."""
        settings = self._settings
        if request.method != "GET":
            raise errors.wrong_method(request.method, request.path, "GET")
        if not settings.websocket_max_requests:
            raise errors.invalid("unknown_url", "This gateway serves no WebSocket.", status=404)
        check_head(request)
        handshake.check(request.headers, settings.allowed_origins)
        if self._api.draining:
            raise errors.draining()
        own = request.clone(headers=handshake.headers_of_requests(request.headers))
        identity = await self._api.identify(own)
        if self._api.draining:  # since then: `_drain` has not seen this connection
            raise errors.draining()
        account = self._api.budget.open(requester.client_of(own, identity, settings))
        return StreamConnection(request, self._streams, settings, account)

    def _drain(self) -> None:
        for connection in list(self._connections):
            connection.drain()
