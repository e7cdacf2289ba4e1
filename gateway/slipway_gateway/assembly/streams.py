"""Makes the application of the API port, and what streams of tokens by WebSocket and gRPC share."""

from aiohttp import web

from ..serving.api import WEBSOCKET, PublicApi
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..token_streams.streams import TokenStreams
from ..websocket_api.endpoint import WebSocketEndpoint


def app_of(edge: PublicApi, settings: GatewaySettings, metrics: GatewayMetrics) -> tuple[web.Application, TokenStreams]:
    """The application with the endpoint of WebSocket, and the streams of the gateway, once in a process."""
    streams = TokenStreams(edge, settings)
    endpoint = WebSocketEndpoint(edge, streams, settings, metrics)
    return edge.app({WEBSOCKET: endpoint.serve}), streams
