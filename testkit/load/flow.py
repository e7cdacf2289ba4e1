"""Many small requests and some streams at a fixed rate, whatever becomes of them, and how each one ended.

Answers end where a sentence pauses (`stop`), so that one that was cut short is an exception, as it is for users.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from testkit.load.background import Background
from testkit.load.client import API_KEY, PROMPTS, REVISION
from testkit.load.pace import open_loop
from testkit.until import until

Json = dict[str, Any]

STOP = [",", ".", ";", ":"]
TIMEOUT_S = 60.0
MOST_AT_ONCE = 256  # requests in flight; what would be more is counted, and not sent


@dataclass(frozen=True, slots=True)
class Shape:
    """What is sent. `streamed` and `marked` are parts of the requests, from 0 to 1."""

    rate: float = 16.0  # requests per second
    streamed: float = 0.25
    max_tokens: int | None = 64  # None leaves it to the server: as many as its context takes
    marker: str = ""  # at the end of prompts
    marked: float = 1.0  # those that have it
    usage: bool = False  # streams name theirs too
    paused: bool = True  # responses end where a sentence pauses
    temperature: float = 0

    def body(self, model: str, number: int) -> Json:
        """The request of this number: the same at each call."""
        prompt = PROMPTS[number % len(PROMPTS)]
        if self.marker and _nth(number, self.marked):
            prompt = f"{prompt} {self.marker}"
        fields: Json = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
        }
        stop: Json = {"stop": STOP} if self.paused else {}
        limit = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        # By turns within each prompt: else some prompts would always stream and others never.
        stream = _nth(number // len(PROMPTS), self.streamed)
        options = {"stream_options": {"include_usage": True}} if stream and self.usage else {}
        return fields | stop | limit | {"stream": stream} | options


def _nth(number: int, part: float) -> bool:
    """Whether this is one of an evenly spread part of all numbers."""
    return int((number + 1) * part) > int(number * part)


@dataclass(frozen=True, slots=True)
class Ended:
    """One request that is over. `trouble` is empty when the client got a whole answer."""

    at: float  # when it was sent, in seconds since the epoch
    revision: str  # empty when no gateway named one
    trouble: str
    finish: str = ""
    text: str = ""
    seconds: float = 0.0
    usage: tuple[int, int] | None = None  # tokens of the prompt and of the answer, as it names them


class Flow:
    """Runs in a thread of its own from `start` to `stop`."""

    def __init__(self, url: str, model: str, shape: Shape, headers: dict[str, str] | None = None) -> None:
        self._headers = {"Authorization": f"Bearer {API_KEY}"} | (headers or {})
        self._url, self._model, self._shape = f"{url}/chat/completions", model, shape
        self._lock = threading.Lock()
        self._background = Background("flow", self._send_all, TIMEOUT_S + 5)
        self._ended: list[Ended] = []
        self.unsent = 0  # known when it has stopped

    def start(self) -> Self:
        self._background.start()
        return self

    def seen(self) -> list[Ended]:
        """Those that ended so far, in the order of their ends."""
        self._background.check()
        with self._lock:
            return list(self._ended)

    def stop(self) -> list[Ended]:
        """Sends no more, and waits for those that run."""
        self._background.stop()
        return self.seen()

    def wait_for(self, holds: Callable[[list[Ended]], bool], deadline_s: float, what: str) -> list[Ended]:
        return until(self.seen, what, deadline_s, holds=holds, shown=_last_troubles)

    async def _send_all(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=15)
        limits = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=limits, headers=self._headers) as session:

            async def send(number: int) -> None:
                await self._ask(session, self._shape.body(self._model, number))

            stopping = self._background.stopping
            self.unsent = await open_loop(send, self._shape.rate, stopping, most_at_once=MOST_AT_ONCE)

    async def _ask(self, session: aiohttp.ClientSession, body: Json) -> None:
        at, revision = time.time(), ""
        try:
            async with session.post(self._url, json=body) as response:
                revision = response.headers.get(REVISION, "")
                ended = ending(at, revision, response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            ended = Ended(at, revision, f"{type(error).__name__}: {error}", seconds=time.time() - at)
        with self._lock:
            self._ended.append(ended)


def _last_troubles(seen: list[Ended]) -> str:
    return f"{len(seen)} requests; {[item for item in seen if item.trouble][-5:]}"


def ending(at: float, revision: str, status: int, body: bytes) -> Ended:
    """What a client makes of an answer: whole or in events, good or not."""
    seconds = time.time() - at
    if status != 200:
        return Ended(at, revision, f"{status}: {body[:200].decode(errors='replace')}", seconds=seconds)
    finish, text, error, usage = "", "", None, None
    for part in _parts(body):
        error, usage = error or part.get("error"), part.get("usage") or usage
        for choice in part.get("choices") or ():
            message = choice.get("message") or choice.get("delta") or {}
            text += message.get("content") or ""
            finish = choice.get("finish_reason") or finish
    trouble = str(error) if error else "" if finish else "the answer has no finish_reason"
    named = (int(usage["prompt_tokens"]), int(usage["completion_tokens"])) if usage else None
    return Ended(at, revision, trouble, finish, text, seconds, named)


def _parts(body: bytes) -> list[Json]:
    if body.startswith(b"{"):
        return [json.loads(body)]
    lines = (line[5:].strip() for line in body.splitlines() if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line != b"[DONE]"]
