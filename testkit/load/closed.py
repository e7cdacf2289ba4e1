"""A closed-loop load through the real openai client: what a rollout may not disturb.

    with Load("http://127.0.0.1:18080/v1", "chat") as load:      # starts; 12 streams are open from here on
        load.wait_for(lambda report: report.requests >= 50, deadline_s=30)
        before = load.report()                                   # a snapshot, at any time, from any thread
        ...
        load.report().since(before)                              # what happened in between
    report = load.stop()                                         # finishes what runs; may be called again
    assert report.failures == () and report.min_streams >= 10

`Load(url, model, streams=12, whole=2)` keeps `streams` streamed and `whole` unstreamed requests in flight; each worker
sends its next request when the former one has ended, `pause_s` later if that is given. Nothing is ever retried: each
failure counts and is kept with its time, request id and text. A stream is broken when it started and then lacks its
finish_reason, its [DONE] or tokens (the requests set ignore_eos, so each answer must have exactly max_tokens tokens).
"""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import openai

from testkit.load.background import Background
from testkit.load.client import API_KEY, PROMPTS, REVISION
from testkit.report import quantile
from testkit.until import until

PAUSE_AFTER_FAILURE_S = 0.2
KEPT_FAILURES = 1000


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that did not end as it should. `broken`: it failed after its first byte."""

    at: float  # seconds since the epoch
    request_id: str
    broken: bool
    revision: str  # empty when no gateway named one
    text: str

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self.at)) + f"{self.at % 1:.3f}"[1:]
        kind = "broken" if self.broken else "failed"
        return f"{clock} {kind} {self.request_id} revision={self.revision or '?'}: {self.text}"


@dataclass(frozen=True, slots=True)
class Report:
    """What the load saw so far."""

    seconds: float = 0.0
    requests: int = 0  # ended ones, the failed included
    streams: int = 0  # those with `stream`
    failed: int = 0  # no answer at all
    broken: int = 0  # an answer that stopped in the middle
    tokens: int = 0
    size_bytes: int = 0  # of answers, as they came
    open_streams: int = 0
    min_streams: int = 0  # fewest streams in flight at any moment since all of them ran; 0 before
    by_revision: dict[str, int] = field(default_factory=dict)  # requests that ended well
    failures_by_revision: dict[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()  # at most the first 1000
    latencies_s: tuple[float, ...] = ()  # of requests that ended well, in their order

    def latency_s(self, share: float) -> float:
        """Seconds from the request to the end of its answer."""
        return quantile(self.latencies_s, share, 0.0)

    def since(self, earlier: "Report") -> "Report":
        """What was added after an earlier report of the same load; the minimum stays that of the whole time."""
        return Report(
            seconds=self.seconds - earlier.seconds,
            requests=self.requests - earlier.requests,
            streams=self.streams - earlier.streams,
            failed=self.failed - earlier.failed,
            broken=self.broken - earlier.broken,
            tokens=self.tokens - earlier.tokens,
            size_bytes=self.size_bytes - earlier.size_bytes,
            open_streams=self.open_streams,
            min_streams=self.min_streams,
            by_revision=dict(Counter(self.by_revision) - Counter(earlier.by_revision)),
            failures_by_revision=dict(Counter(self.failures_by_revision) - Counter(earlier.failures_by_revision)),
            failures=self.failures[len(earlier.failures) :],
            latencies_s=self.latencies_s[len(earlier.latencies_s) :],
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send."""

    id: str
    prompt: str
    chat: bool
    stream: bool
    max_tokens: int
    seed: int

    def arguments(self, model: str) -> dict[str, Any]:
        prompt = {"messages": [{"role": "user", "content": self.prompt}]} if self.chat else {"prompt": self.prompt}
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}
        return {
            "model": model,
            **prompt,
            **streamed,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "extra_body": {"ignore_eos": True},
            "extra_headers": {"X-Request-Id": self.id},
        }


@dataclass(slots=True)
class Answer:
    """What has come of one request so far."""

    revision: str = ""
    started: bool = False
    finish_reason: str | None = None
    tokens: int = 0
    text: str = ""
    size_bytes: int = 0
    tail: bytes = b""

    def take(self, chunk: Any) -> None:
        for choice in chunk.choices:
            delta = getattr(choice, "delta", None)
            self.text += (delta.content if delta else getattr(choice, "text", "")) or ""
            self.finish_reason = choice.finish_reason or self.finish_reason
        if chunk.usage:
            self.tokens = chunk.usage.completion_tokens

    def lacks(self, ask: Ask) -> str:
        """What a whole answer would have and this one has not; empty when nothing is missing."""
        if self.finish_reason is None:
            return f"no finish_reason after {len(self.text)} characters"
        if ask.stream and b"[DONE]" not in self.tail:
            return "no [DONE] at the end of the stream"
        if self.tokens != ask.max_tokens:
            return f"{self.tokens} of {ask.max_tokens} tokens, finish_reason {self.finish_reason}"
        return "" if self.revision else f"no {REVISION} header"


class Load:
    """Keeps requests in flight from `start` to `stop`."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        streams: int = 12,
        whole: int = 2,
        max_tokens: tuple[int, int] = (20, 120),
        timeout_s: float = 60.0,
        pause_s: float = 0.0,
        max_requests: int = 100_000,
    ) -> None:
        self._url, self._model = url, model
        self._workers = [True] * streams + [False] * whole
        self._tally = Tally(streams)
        self._requests = requests_of(max_tokens, max_requests)
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._background = Background("load", self._serve, timeout_s + 5)

    def start(self) -> Self:
        self._background.start()
        return self

    def report(self) -> Report:
        self._background.check()
        return self._tally.report()

    def wait_for(self, holds: Callable[[Report], bool], deadline_s: float, what: str = "the load") -> Report:
        """Waits until a report satisfies `holds`."""
        return until(self.report, what, deadline_s, holds=holds, shown=_last_failures)

    def stop(self) -> Report:
        """Lets running requests end, for as long as one may take at most."""
        self._tally.close()
        self._background.stop()
        return self.report()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _serve(self) -> None:
        async with openai.AsyncOpenAI(
            base_url=self._url, api_key=API_KEY, max_retries=0, timeout=self._timeout_s
        ) as client:
            await asyncio.gather(*(self._work(client, streams) for streams in self._workers))

    async def _work(self, client: openai.AsyncOpenAI, streams: bool) -> None:
        while not self._background.stopping.is_set() and (ask := next(self._requests[streams], None)):
            well = await self._once(client, ask)
            if (
                pause_s := self._pause_s if well else PAUSE_AFTER_FAILURE_S
            ):  # none: no stream may be missing for a moment
                await asyncio.sleep(pause_s)

    async def _once(self, client: openai.AsyncOpenAI, ask: Ask) -> bool:
        answer, began = Answer(), time.monotonic()
        self._tally.begin(ask)
        try:
            async with asyncio.timeout(self._timeout_s):
                await send(client, self._model, ask, answer)
            trouble = answer.lacks(ask)
        except Exception as error:  # whatever it is, it is a request that did not end well
            answer.revision = answer.revision or _revision_of(error)
            trouble = _text_of(error)
        self._tally.end(ask, answer, trouble, time.monotonic() - began)
        return not trouble


def _last_failures(seen: Report) -> str:
    return f"{seen.requests} requests" + "".join(f"\n  {failure}" for failure in seen.failures[-5:])


class Tally:
    """Counts, under one lock: the load's thread writes, others read."""

    def __init__(self, streams: int) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._all_streams = streams
        self._open = 0
        self._min: int | None = None
        self._closed_at: float | None = None
        self._count: Counter[str] = Counter()
        self._good: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()
        self._failures: list[Failure] = []
        self._latencies: list[float] = []

    def begin(self, ask: Ask) -> None:
        with self._lock:
            self._open += ask.stream
            if self._min is None and self._open >= self._all_streams:
                self._min = self._open

    def end(self, ask: Ask, answer: Answer, trouble: str, seconds: float) -> None:
        with self._lock:
            self._open -= ask.stream
            if self._min is not None and self._closed_at is None:
                self._min = min(self._min, self._open)
            broken = bool(trouble) and answer.started
            self._count.update(requests=1, streams=int(ask.stream), tokens=answer.tokens, bytes=answer.size_bytes)
            self._count.update(failed=int(bool(trouble) and not broken), broken=int(broken))
            if not trouble:
                self._good[answer.revision] += 1
                self._latencies.append(seconds)
                return
            self._bad[answer.revision] += 1
            if len(self._failures) < KEPT_FAILURES:
                self._failures.append(Failure(time.time(), ask.id, broken, answer.revision, trouble))

    def close(self) -> None:
        """From here on streams may become fewer."""
        with self._lock:
            self._closed_at = self._closed_at or time.monotonic()

    def report(self) -> Report:
        with self._lock:
            return Report(
                seconds=(self._closed_at or time.monotonic()) - self._began,
                requests=self._count["requests"],
                streams=self._count["streams"],
                failed=self._count["failed"],
                broken=self._count["broken"],
                tokens=self._count["tokens"],
                size_bytes=self._count["bytes"],
                open_streams=self._open,
                min_streams=self._min or 0,
                by_revision=dict(self._good),
                failures_by_revision=dict(self._bad),
                failures=tuple(self._failures),
                latencies_s=tuple(self._latencies),
            )


def requests_of(max_tokens: tuple[int, int], limit: int) -> dict[bool, Any]:
    """Endless variety from a fixed seed, for streamed and unstreamed workers; `limit` bounds a forgotten load."""
    run = f"load-{time.time_ns():x}"
    numbers = iter(range(limit))

    def vary(stream: bool) -> Any:
        chance = random.Random(int(stream))
        for prompt, chat in itertools.cycle(itertools.product(PROMPTS, (True, False))):
            number = next(numbers, None)
            if number is None:
                return
            yield Ask(f"{run}-{number}", prompt, chat, stream, chance.randint(*max_tokens), chance.getrandbits(31))

    return {True: vary(True), False: vary(False)}


async def send(client: openai.AsyncOpenAI, model: str, ask: Ask, answer: Answer) -> None:
    """One request; `answer` keeps what came even when it raises."""
    resource = client.chat.completions if ask.chat else client.completions
    response = await resource.with_raw_response.create(**ask.arguments(model))
    answer.started = True
    answer.revision = response.headers.get(REVISION, "")
    if not ask.stream:
        answer.size_bytes = len(response.content)
        whole = response.parse()
        answer.finish_reason, answer.tokens = whole.choices[0].finish_reason, whole.usage.completion_tokens
        return
    _watch_bytes(response.http_response, answer)
    async for chunk in response.parse():
        answer.take(chunk)


def _watch_bytes(response: Any, answer: Answer) -> None:
    """The client hides the end of a stream: whether [DONE] came is only seen in the bytes themselves."""
    read = response.aiter_bytes

    async def aiter_bytes(*arguments: Any) -> AsyncIterator[bytes]:
        async for chunk in read(*arguments):
            answer.size_bytes += len(chunk)
            answer.tail = (answer.tail + chunk)[-64:]
            yield chunk

    response.aiter_bytes = aiter_bytes


def _revision_of(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return str(response.headers.get(REVISION, "")) if response is not None else ""


def _text_of(error: BaseException) -> str:
    """The error with its causes: the client's own is no more than `Connection error.`"""
    if isinstance(error, openai.APIStatusError):
        return str(error)[:400]
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 4:
        if not parts or not parts[-1].endswith(str(seen)):  # wrappers repeat what they wrap
            parts.append(f"{type(seen).__name__}: {seen}"[:400])
        seen = seen.__cause__ or seen.__context__
    return " <- ".join(parts)
