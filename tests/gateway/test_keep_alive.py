"""Comments in long silences of a stream: OpenAI's own client reads on, whatever form the server gives them."""

import asyncio
import json

import openai
import pytest
from aiohttp import web

from tests.gateway.harness import gateway, upstream

STREAM = {"X-Slipway-Stream": f"1-2-{3:032x}", "Content-Type": "text/event-stream"}


def event(text: str) -> bytes:
    delta = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "model": "chat"} | delta).encode()


@pytest.mark.parametrize(
    "pieces", [(b":\n",), (b":\n\n",), (b": ping\n\n",), (b":", b"\n"), (b": PROCESSING\n", b"\n")]
)
@pytest.mark.parametrize("is_marked", [True, False])
async def test_openais_client_reads_on_after_a_silence(pieces: tuple[bytes, ...], is_marked: bool) -> None:
    """With marks, as slipway-server sends them, the gateway adds ids; with others' streams it does not."""

    async def serve(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers=STREAM if is_marked else {"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for at, text in enumerate("abc", 1):
            await out.write((b": %d.00000000 %d\n" % (at, at) if is_marked else b"") + event(text) + b"\n\n")
            for _ in range(2):
                for piece in pieces:
                    await asyncio.sleep(0.02)
                    await out.write(piece)
        await out.write(b"data: [DONE]\n\n")
        return out

    async with upstream(serve) as server, gateway() as door:
        door.route(("r1", 100, [server.url]))
        async with openai.AsyncOpenAI(base_url=door.url + "/v1", api_key="none", max_retries=0) as client:
            messages = [{"role": "user", "content": "a"}]
            stream = await client.chat.completions.create(model="chat", messages=messages, stream=True)  # type: ignore[call-overload]
            assert [chunk.choices[0].delta.content async for chunk in stream] == ["a", "b", "c"]
        async with await door.post({"model": "chat", "stream": True, "messages": []}) as response:
            text = await response.read()
        assert (b"\nid: " in b"\n" + text) is is_marked and b":\n" in text
        assert not any(block.startswith(b":") and b"data" not in block for block in text.split(b"\n\n"))
