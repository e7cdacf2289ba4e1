"""A gateway with a gRPC port, and calls of bytes: the gateway itself has no library of messages either."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
from aiohttp import web
from grpc import aio

from devcluster.ports import reserve_port
from slipway_contracts import protobuf
from slipway_gateway.grpc_api.listener import GrpcServer
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.serving.tls import server_tls
from slipway_gateway.settings import GatewaySettings

from .harness import Gateway, Handler, gateway

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
PROTOBUF = "application/x-protobuf"


@dataclass
class GrpcGateway:
    gate: Gateway
    server: GrpcServer
    channel: aio.Channel

    async def call(self, method: str, message: bytes = b"", **options: Any) -> bytes:
        path = method if method.startswith("/") else f"/inference.GRPCInferenceService/{method}"
        answer = await self.channel.unary_unary(path)(message, **options)
        assert isinstance(answer, bytes)
        return answer

    async def failure(self, method: str, message: bytes = b"", **options: Any) -> tuple[str, str]:
        """Name of the status and text of a call that fails."""
        try:
            await self.call(method, message, **options)
        except aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError("it did not fail")


@contextlib.asynccontextmanager
async def grpc_gateway(
    tenants: Iterable[KnownTenant] | None = (), pepper: bytes = b"", **changes: Any
) -> AsyncIterator[GrpcGateway]:
    port = reserve_port()
    settings = {"hold_timeout_s": 0.3, "host": "127.0.0.1", "port": 0, "grpc_port": port} | changes
    async with gateway(tenants, pepper, **settings) as gate:
        made_settings = GatewaySettings(**settings)
        tls = server_tls(made_settings, gate.metrics)
        server = GrpcServer(gate.edge, gate.balancer.published, made_settings, tls, streams=gate.streams)
        await server.start()
        checking = asyncio.create_task(server.run())
        async with aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]) as made:
            try:
                yield GrpcGateway(gate, server, made)
            finally:
                await server.close()
                checking.cancel()


def infer(model: str = "chat", version: str = "", request_id: str = "", payload: bytes = b"") -> bytes:
    """A ModelInferRequest with names and, in the place of an input's bytes, any."""
    named = [protobuf.text_field(n, text) for n, text in enumerate((model, version, request_id), 1)]
    return b"".join([*named, protobuf.bytes_field(7, payload)])


def inferred(*labels: int) -> bytes:
    """A ModelInferResponse with one output of labels."""
    output = protobuf.text_field(1, "o") + protobuf.text_field(2, "INT64") + protobuf.packed_field(3, [len(labels)])
    return protobuf.bytes_field(5, output) + protobuf.bytes_field(6, struct.pack(f"<{len(labels)}q", *labels))


def inferring(*labels: int) -> Handler:
    """A server that predicts the labels in turn."""
    places = count()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=inferred(labels[next(places) % len(labels)]), content_type=PROTOBUF)

    return answer


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), content_type=PROTOBUF)


def trailing(call: Any) -> dict[str, str]:
    return dict(call)


__all__ = [
    "INFER",
    "PROTOBUF",
    "STREAM",
    "GrpcGateway",
    "echo",
    "grpc",
    "grpc_gateway",
    "infer",
    "inferred",
    "inferring",
    "trailing",
]
