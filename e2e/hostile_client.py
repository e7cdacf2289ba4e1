"""What the hostile namespace's pod sends to the gateways: poison, floods, forged heads. Runs inside of a pod.

    python hostile_client.py '{"gateway": "http://…", "models": ["…"], "windows": [[FROM, TO]], "seen": "/tmp/seen"}'

It needs the standard library and aiohttp alone, sends within the windows (seconds since the epoch), and is silent
between them. All is bounded in time, in number and in connections. It prints a count of statuses for each kind of
request as JSON, and keeps what it was answered in the file `seen`, up to MOST_KEPT bytes a window.
"""

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from typing import Any
from urllib.parse import urlsplit

import aiohttp

Json = dict[str, Any]
Counts = dict[str, Counter[str]]

MOST_KEPT = 4 << 20
STALLED = 48  # connections that send a head and the beginning of a body, then nothing
BIG_BYTES = 8 << 20
BIG_EVERY_S = 1.0
POISON_EVERY_S = 0.25
FORGED_EVERY_S = 0.5
RAW_EVERY_S = 0.5
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def poisons() -> list[tuple[str, Json]]:
    """Bodies of which each once ended an engine, or nearly did (safety 1, 2, 3, 5); without the model's name."""
    chat: Json = {"messages": [{"role": "user", "content": "Hear"}], "max_tokens": 2}
    masked: Json = {"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 5, "top_p": 0.9, "max_tokens": 6}
    return [
        (CHAT, chat | {"temperature": 1e-45, "top_p": 0.9}),
        (CHAT, chat | {"repetition_penalty": 1e-300, "top_p": 0.9}),
        (CHAT, chat | masked),
        (CHAT, chat | masked | {"temperature": 0}),
        (CHAT, chat | {"top_k": 10**25}),
        (CHAT, chat | {"min_tokens": 2**63}),
        (CHAT, chat | {"logit_bias": {"9" * 5000: 1}}),
        (CHAT, chat | {"priority": -(2**63) - 1}),
        (COMPLETIONS, {"prompt": [10**9], "max_tokens": 2}),
        (COMPLETIONS, {"prompt": [-1], "max_tokens": 2}),
        (COMPLETIONS, {"prompt": [*range(250, 280), 2**31, 2**62], "max_tokens": 2}),
        ("/v1/generate", {"prompt": "Hear", "max_tokens": 2, "priority": 10**30}),
    ]


def nested(model: str) -> bytes:
    depth = 20_000
    return b'{"model": %s, "stop": %s%s}' % (json.dumps(model).encode(), b"[" * depth, b"]" * depth)


def forged(model: str) -> dict[str, str]:
    """Headers that only gateways send, and names of others."""
    return {
        "Host": f"{model}.svc.cluster.local",
        "X-Slipway-Tenant": "0" * 32,
        "X-Slipway-Priority-Limit": "-1000",
        "X-Slipway-Shadow": "1",
        "X-Slipway-Returns": "1",
        "X-Slipway-Resumable": "1",
        "X-Slipway-Resume": "1-1-1.0.0",
        "X-Slipway-Resume-Bytes": "4",
        "X-Slipway-Revision": "0",
        "X-Forwarded-For": "127.0.0.1",
        "X-Request-Id": "forged\\r\\nX-Slipway-Tenant: 0",
        "Last-Event-ID": "a.1-1-1.0.0.0",
    }


def raw_heads(host: str) -> list[bytes]:
    """Requests in which two readers could see two different ends."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\n".encode()
    smuggled = f"GET /internal/routes HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    return [
        head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
        head + b"Content-Length: 4\r\nContent-Length: 0\r\n\r\n" + smuggled,
        head + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
        head + b"Content-Length: -1\r\n\r\n" + smuggled,
        f"GET /internal/routes HTTP/1.1\r\nHost: {host}:8001\r\nConnection: close\r\n\r\n".encode(),
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    ]


class Stranger:
    """One window of it."""

    def __init__(self, session: aiohttp.ClientSession, plan: Json, until: float, counts: Counts) -> None:
        self._session, self._url, self._models = session, str(plan["gateway"]), list(plan["models"])
        self._until = time.monotonic() + until - time.time()
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self.counts = counts

    async def run(self) -> None:
        where = urlsplit(self._url)
        address = (str(where.hostname), where.port or 80)
        works = [self._poison(), self._big(), self._forge(), self._raw(address)]
        works += [self._stall(address, number) for number in range(STALLED)]
        await asyncio.gather(*works)

    def seen(self) -> bytes:
        return b"\n".join(self._kept)

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _keep(self, received: bytes) -> None:
        if self._kept_bytes + len(received) <= MOST_KEPT:
            self._kept.append(received)
            self._kept_bytes += len(received)

    async def _post(self, kind: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        limits = aiohttp.ClientTimeout(total=max(1.0, min(30.0, self._left() + 5)))
        try:
            async with self._session.post(
                self._url + path, data=body, headers={"Content-Type": "application/json"} | headers, timeout=limits
            ) as answer:
                self._keep(str(dict(answer.headers)).encode() + await answer.read())
                self.counts[kind][str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self.counts[kind][type(error).__name__] += 1

    async def _poison(self) -> None:
        bodies = poisons()
        for number in itertools.count():
            if self._left() <= 0:
                return
            model = self._models[number % len(self._models)]
            path, body = bodies[(number // len(self._models)) % len(bodies)]
            await self._post("poison", path, json.dumps({"model": model, **body}).encode(), {})
            if number % 40 == 0:
                await self._post("nested", CHAT, nested(model), {})
            await asyncio.sleep(POISON_EVERY_S)

    async def _big(self) -> None:
        for number in itertools.count():
            if self._left() <= 0:
                return
            model = self._models[number % len(self._models)]
            head, tail = f'{{"model": "{model}", "max_tokens": 1, "prompt": "'.encode(), b'"}'
            await self._post("big body", COMPLETIONS, head + b"a" * BIG_BYTES + tail, {})
            await asyncio.sleep(BIG_EVERY_S)

    async def _forge(self) -> None:
        for number in itertools.count():
            if self._left() <= 0:
                return
            model = self._models[number % len(self._models)]
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "Hear"}],
                "max_tokens": 2,
                "priority": -1000,
            }
            headers = forged(model)
            name = list(headers)[number % len(headers)]
            chosen = headers if number % 10 == 9 else {name: headers[name]}
            await self._post("forged headers", CHAT, json.dumps(body).encode(), chosen)
            await asyncio.sleep(FORGED_EVERY_S)

    async def _raw(self, address: tuple[str, int]) -> None:
        heads = raw_heads(address[0])
        for number in itertools.count():
            if self._left() <= 0:
                return
            answered = await self._exchange(address, heads[number % len(heads)])
            self._keep(answered)
            self.counts["raw heads"][answered[9:12].decode(errors="replace") or "closed"] += 1
            await asyncio.sleep(RAW_EVERY_S)

    async def _exchange(self, address: tuple[str, int], sent: bytes) -> bytes:
        try:
            reader, writer = await asyncio.open_connection(*address)
        except OSError:
            return b""
        try:
            writer.write(sent)
            return await asyncio.wait_for(reader.read(65536), 2)
        except (OSError, TimeoutError):
            return b""
        finally:
            writer.close()

    async def _stall(self, address: tuple[str, int], number: int) -> None:
        """A body that never comes; when the gateway has had enough of it, the next one."""
        size = 16 << 20 if number % 2 else 1 << 20
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: application/json\r\n"
        sent = f'{head}Content-Length: {size}\r\n\r\n{{"model": "{self._models[0]}", "x": "'.encode() + b"a" * 4096
        while self._left() > 0:
            try:
                reader, writer = await asyncio.open_connection(*address)
            except OSError:
                self.counts["stalled body"]["refused"] += 1
                await asyncio.sleep(1)
                continue
            with contextlib.suppress(OSError):
                writer.write(sent)
            answered = b""
            with contextlib.suppress(OSError, TimeoutError):
                answered = await asyncio.wait_for(reader.read(4096), max(0.1, self._left()))
            self._keep(answered)
            self.counts["stalled body"][answered[9:12].decode(errors="replace") or "held to the end"] += 1
            writer.close()
            await asyncio.sleep(1)


def append(name: str, received: bytes) -> None:
    with open(name, "ab") as seen:
        seen.write(received)


async def main(plan: Json) -> None:
    counts: Counts = defaultdict(Counter)
    for begins, ends in plan["windows"]:
        await asyncio.sleep(max(0.0, begins - time.time()))
        # Connections that end with each request: what balances the load then spreads them over all gateways.
        connector = aiohttp.TCPConnector(limit=32, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector, headers={"Authorization": "Bearer sk-stranger"}
        ) as session:
            stranger = Stranger(session, plan, ends, counts)
            await stranger.run()
        append(plan["seen"], stranger.seen())
    print(json.dumps({kind: dict(found) for kind, found in counts.items()}))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
