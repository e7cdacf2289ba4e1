"""The client: streams answers of an OpenAI-style server in a closed or an open loop, and notes when each token came."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from bench.engine.workload import Prompt

ERROR_CHARACTERS = 300
SAMPLED = {"temperature": 0.8, "top_p": 0.95}


@dataclass(frozen=True, slots=True)
class Target:
    """Where to ask, under what name, and which fields beyond the standard ones this server takes."""

    url: str
    model: str
    fields: dict[str, Any]
    sampled: dict[str, Any] = field(default_factory=dict)  # more fields, where tokens are sampled

    def sampling(self) -> "Target":
        """The same server, for requests as most users send them."""
        return replace(self, fields=self.fields | SAMPLED | self.sampled)


@dataclass(slots=True)
class Answer:
    """One request as its client saw it, in seconds of the monotonic clock."""

    prompt: Prompt
    began_s: float
    ended_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)  # of each event with text
    usage: dict[str, int] | None = None  # the server's own counts, where it sends them
    error: str = ""  # empty: it ended as it should

    @property
    def tokens(self) -> int:
        """Of the answer: the count of the server, else one for each event."""
        return self.usage["completion_tokens"] if self.usage else len(self.token_times_s)

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.began_s

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_times_s, self.token_times_s[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Run:
    """All answers of one load. `cut`: the time was over before the last one ended."""

    answers: list[Answer]
    seconds: float
    cut: bool


async def closed_loop(target: Target, prompts: Sequence[Prompt], concurrency: int, limit_s: float) -> Run:
    """`concurrency` clients ask one prompt after the other until none is left."""
    waiting = list(reversed(prompts))

    async def client(session: aiohttp.ClientSession, answers: list[Answer]) -> None:
        while waiting:
            await _ask(session, target, waiting.pop(), answers)

    return await _run([client] * concurrency, limit_s)


async def open_loop(target: Target, prompts: Sequence[Prompt], limit_s: float) -> Run:
    """Each prompt is sent at its time, whatever became of those before it."""
    started = time.perf_counter()

    def client_of(prompt: Prompt) -> Any:
        async def client(session: aiohttp.ClientSession, answers: list[Answer]) -> None:
            await asyncio.sleep(max(0.0, started + prompt.at_s - time.perf_counter()))
            await _ask(session, target, prompt, answers)

        return client

    return await _run([client_of(prompt) for prompt in prompts], limit_s)


async def _run(clients: Sequence[Any], limit_s: float) -> Run:
    answers: list[Answer] = []
    # A connection for each request: what a server does with kept connections is not what is measured.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as session:
        began = time.perf_counter()
        tasks = [asyncio.create_task(client(session, answers)) for client in clients]
        _, late = await asyncio.wait(tasks, timeout=limit_s)
        seconds = time.perf_counter() - began
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            raise error
    return Run(answers, seconds, bool(late))


async def _ask(session: aiohttp.ClientSession, target: Target, prompt: Prompt, answers: list[Answer]) -> None:
    body = {"model": target.model, "prompt": prompt.text, "max_tokens": prompt.output_tokens, "temperature": 0}
    answer = Answer(prompt, time.perf_counter(), error="cut off")
    answers.append(answer)
    try:
        async with session.post(f"{target.url}/v1/completions", json=body | {"stream": True} | target.fields) as reply:
            if reply.status == 200:
                answer.error = await _read(reply, answer)
            else:
                answer.error = f"status {reply.status}: {(await reply.text())[:ERROR_CHARACTERS]}"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended_s = time.perf_counter()


async def _read(reply: aiohttp.ClientResponse, answer: Answer) -> str:
    """Notes the events of a stream; returns what went wrong, empty when nothing did."""
    async for line in reply.content:
        if not line.startswith(b"data:"):
            continue
        now, data = time.perf_counter(), line[5:].strip()
        if data == b"[DONE]":
            break
        event = json.loads(data)
        if event.get("error"):
            return str(event["error"])[:ERROR_CHARACTERS]
        answer.usage = event.get("usage") or answer.usage
        if any(choice.get("text") for choice in event.get("choices") or ()):
            answer.token_times_s.append(now)
    return ""
