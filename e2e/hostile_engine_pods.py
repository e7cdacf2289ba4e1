"""Programs of pods beside a hostile engine. Each runs inside of a pod and needs the standard library and aiohttp alone.

    python hostile_engine_pods.py engine lies          # answers chats with usages that no request can cause
    python hostile_engine_pods.py engine comments      # streams comments that hold an event back, a few bytes at a time
    python hostile_engine_pods.py hooks SECONDS        # answers each hook after so long, and prints one line for it
    python hostile_engine_pods.py client '{"gateway": "http://…", "key": "…", "windows": [[FROM, TO]], …}'

The client sends within the windows (seconds since the epoch), and is silent between them. It prints a count of what
became of its requests as JSON.
"""

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from typing import Any

import aiohttp
from aiohttp import web

Json = dict[str, Any]

ENGINE_PORT, HOOKS_PORT = 8000, 8080
CHAT = "/v1/chat/completions"
LARGEST = 2**40 - 1
# As JSON: no library of this side changes them.
USAGES = (
    f'{{"prompt_tokens": {LARGEST}, "completion_tokens": {LARGEST}, "total_tokens": {2 * LARGEST}}}',
    '{"prompt_tokens": 1e308, "completion_tokens": 1e308}',
    '{"prompt_tokens": -1, "completion_tokens": -1, "total_tokens": -2}',
    f'{{"prompt_tokens": "{LARGEST}", "completion_tokens": "1e9"}}',
    f'{{"prompt_tokens": {{"n": {LARGEST}}}, "completion_tokens": [{LARGEST}]}}',
    f'{{"input_tokens": {2**63}, "output_tokens": {10**30}}}',
    f'{{"prompt_tokens": {2**64}, "completion_tokens": 1, "prompt_tokens_details": {{"cached_tokens": {2**65}}}}}',
    '{"prompt_tokens": ' + "[" * 500 + "]" * 500 + "}",
    f'{{"prompt_tokens": true, "completion_tokens": {LARGEST}}}',
)
# An event that others of its token follow, and nothing else: the beginning of a stream, and what follows at a time.
FOLLOWED = b": +\n\n"
# The beginning is a little less than a gateway may hold: one that looked through it again for each piece would be busy.
FIRST_EVENTS, PAUSE_S = 50_000, 0.01
HELD_PER_S, AGAIN_S = 50, 5.0


# --- the engine -------------------------------------------------------------------------------------------------------


class Engine:
    """OpenAI's chats, as far as a gateway needs them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def lies(self, request: web.Request) -> web.StreamResponse:
        body, usage = await request.json(), USAGES[next(self._numbers) % len(USAGES)]
        head = f'"id": "a", "created": 1, "model": "m", "usage": {usage}'
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "And"}, "finish_reason": "stop"}
            text = f'{{"object": "chat.completion", {head}, "choices": [{json.dumps(choice)}]}}'
            return web.Response(text=text, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        choice = {"index": 0, "delta": {"role": "assistant", "content": "And"}, "finish_reason": "stop"}
        for choices in (json.dumps([choice]), "[]"):
            event = f'data: {{"object": "chat.completion.chunk", {head}, "choices": {choices}}}\n\n'
            await response.write(event.encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def comments(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            await response.write(FOLLOWED * FIRST_EVENTS)
            while True:
                await response.write(FOLLOWED)
                await asyncio.sleep(PAUSE_S)
        return response


def serve_engine(kind: str) -> None:
    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/health", healthy)
    app.router.add_post(CHAT, getattr(Engine(), kind))
    web.run_app(app, port=ENGINE_PORT, print=None)


# --- the receiver of hooks --------------------------------------------------------------------------------------------


def serve_hooks(answers_after_s: float) -> None:
    async def answer(request: web.Request) -> web.Response:
        call = await request.json()
        shown = {name: call.get(name) for name in ("name", "hook", "type", "revision", "timestamp")}
        event = (call.get("metadata") or {}).get("eventReason", "")
        print(json.dumps(shown | {"event": event, "at": time.time()}), flush=True)
        await asyncio.sleep(answers_after_s)
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_post("/{any:.*}", answer)
    web.run_app(app, port=HOOKS_PORT, print=None)


# --- the client -------------------------------------------------------------------------------------------------------


class Client:
    """One window. The plan has models by what is sent to them, and numbers: `lies_per_s`, `streams`, `held`."""

    def __init__(self, session: aiohttp.ClientSession, plan: Json, until: float, counts: dict[str, Counter[str]]):
        self._session, self._plan, self._counts = session, plan, counts
        self._until = time.monotonic() + until - time.time()

    async def run(self) -> None:
        works = [self._lie()] if self._plan["lies_per_s"] else []
        works += [self._stream() for _ in range(self._plan["streams"])]
        works += [self._hold(number / HELD_PER_S) for number in range(self._plan["held"])]
        await asyncio.gather(*works)

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _post(self, model: str, *, stream: bool = False) -> Any:
        body = {"model": model, "messages": [{"role": "user", "content": "Hear"}], "max_tokens": 16, "stream": stream}
        limits = aiohttp.ClientTimeout(total=max(0.1, self._left()))
        return self._session.post(self._plan["gateway"] + CHAT, json=body, timeout=limits)

    async def _lie(self) -> None:
        for number in itertools.count():
            if self._left() <= 0:
                return
            with self._counting("lies"):
                async with self._post(self._plan["models"]["lies"], stream=number % 2 == 1) as answer:
                    await answer.read()
                    self._counts["lies"][str(answer.status)] += 1
            await asyncio.sleep(1 / self._plan["lies_per_s"])

    async def _stream(self) -> None:
        counted = self._counts["streams"]
        while self._left() > 0:
            with self._counting("streams"):
                async with self._post(self._plan["models"]["comments"], stream=True) as answer:
                    counted[str(answer.status)] += 1
                    async for chunk in answer.content.iter_any():
                        counted["chunks"] += 1
                        counted["bytes"] += len(chunk)
            await asyncio.sleep(min(1.0, max(0.0, self._left())))

    async def _hold(self, after_s: float) -> None:
        """Sends to a model that never becomes ready, and again when it is refused."""
        await asyncio.sleep(after_s)
        while self._left() > 0:
            with self._counting("held"):
                async with self._post(self._plan["models"]["asleep"]) as answer:
                    self._counts["held"][str(answer.status)] += 1
            await asyncio.sleep(min(AGAIN_S, max(0.0, self._left())))

    @contextlib.contextmanager
    def _counting(self, kind: str) -> Any:
        try:
            yield
        except TimeoutError:
            self._counts[kind]["open to the end"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self._counts[kind][type(error).__name__] += 1


async def send(plan: Json) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for begins, ends in plan["windows"]:
        await asyncio.sleep(max(0.0, begins - time.time()))
        # Connections that end with each request: what balances the load then spreads them over all gateways.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        headers = {"Authorization": f"Bearer {plan['key']}"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            await Client(session, plan, ends, counts).run()
    print(json.dumps({kind: dict(found) for kind, found in counts.items()}))


if __name__ == "__main__":
    role, argument = sys.argv[1:]
    if role == "engine":
        serve_engine(argument)
    elif role == "hooks":
        serve_hooks(float(argument))
    else:
        asyncio.run(send(json.loads(argument)))
