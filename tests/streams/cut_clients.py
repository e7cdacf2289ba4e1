"""Clients of streams of tokens that lose their connection at random, and come back for the rest."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from grpc import aio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.gateway.test_generation import METHOD, M, generate, resume

GONE = (ConnectionClosed, OSError, aio.AioRpcError, TimeoutError)
_TRANSIENT = ("draining", "model_not_ready", "stream_gone_soon", "upstream_unreachable")


@dataclass
class Received:
    """What a client has of a stream. `done`: its last event."""

    tokens: list[str] = field(default_factory=list)
    position: int = 0
    event_id: str = ""
    done: tuple[int, int, str] | None = None

    @property
    def text(self) -> str:
        return "".join(self.tokens)


class Client(Protocol):
    """Reads a stream until it ended, or `most` further events came; then it breaks the connection off."""

    async def read(self, at: Any, start: dict[str, Any], received: Received, most: int) -> None:
        """`at`: where the gateway is. `start`: the request; with `from` it is resumed by its id. Raises one of `GONE`,
        and LookupError: the gateway does not know the id."""


class WebSocketClient:
    def __init__(self, key: str) -> None:
        self._key = key

    async def read(self, at: str, start: dict[str, Any], received: Received, most: int) -> None:
        url = f"ws{at.removeprefix('http')}/v1/stream"
        offered = ["slipway.v1", f"bearer.{self._key}"]
        async with connect(url, subprotocols=offered, open_timeout=20) as socket:  # type: ignore[arg-type]
            message = start if "from" not in start else {"type": "resume", "id": start["id"], "from": start["from"]}
            await socket.send(json.dumps(message))
            while received.done is None and most > 0:
                async with asyncio.timeout(60):
                    event = json.loads(await socket.recv())
                if event["type"] == "error":
                    raise_for(event.get("status", 0), event["error"])
                most -= 1
                received.position, received.event_id = event["position"], event["event_id"]
                if event["type"] == "token":
                    received.tokens.append(event["token"])
                else:
                    usage = event["usage"]
                    received.done = (usage["input_tokens"], usage["output_tokens"], event["finish_reason"])
            if received.done is None:
                socket.transport.abort()


class GrpcClient:
    def __init__(self, key: str) -> None:
        self._metadata = (("authorization", f"Bearer {key}"),)

    async def read(self, at: aio.Channel, start: dict[str, Any], received: Received, most: int) -> None:
        message = resume(start["id"], start["from"]) if "from" in start else generate(**start)
        stream = at.unary_stream(METHOD, response_deserializer=M["StreamEvent"].FromString)
        call = stream(message.SerializeToString(), metadata=self._metadata, timeout=60)
        try:
            while received.done is None and most > 0:
                event = await call.read()
                if event is aio.EOF:
                    raise ConnectionResetError("it ended without its last event")
                most -= 1
                received.position, received.event_id = event.position, event.event_id
                if event.WhichOneof("event") == "token":
                    received.tokens.append(event.token)
                else:
                    usage = event.done.usage
                    received.done = (usage.input_tokens, usage.output_tokens, event.done.finish_reason)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise LookupError(error.details()) from None
            raise
        finally:
            call.cancel()


def raise_for(status: int, error: dict[str, Any]) -> None:
    if error["code"] == "stream_not_found":
        raise LookupError(error["message"])
    raise ConnectionResetError(f"{status} {error}")


async def go_on(client: Client, at: Any, start: dict[str, Any], received: Received, most: int) -> None:
    """Reads on: by id where the gateway knows it, else by the last event. A gateway or pod may be away for a while."""
    if not received.event_id:
        return await client.read(at, start, received, most)
    try:
        await client.read(at, {"id": start["id"], "from": received.position}, received, most)
    except LookupError:
        await client.read(at, start | {"last_event_id": received.event_id}, received, most)


def cuts(chance: random.Random, events: int) -> list[int]:
    """After how many further events each connection of a stream breaks off; the last one does not."""
    return [chance.randrange(0, events) for _ in range(chance.randrange(1, 4))] + [10**9]
