"""One request as a careful client sends it: it comes back after a lost connection, and compares every character.

A short request that lost its connection is sent again, as the openai client does. A stream goes on with
`Last-Event-ID`, and announces that from the start (`X-Slipway-Resumable`). A refusal is final for a first try, but
for 429: too much to do is the machine's, not a failure.
"""

import asyncio
import difflib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Json = dict[str, Any]

REQUEST_ID = "X-Request-Id"
LAST_EVENT_ID = "Last-Event-ID"
# For a stream that it will not give up: the pod goes on computing until the client is back.
RESUMABLE = "X-Slipway-Resumable"
# How often a client comes back, and how long after the last event; a revision's only pod may need that long to
# start again.
TRIES, PATIENCE_S = 12, 180.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 8.0
SHORT_TIMEOUT_S, SILENCE_S = 120.0, 240.0

GOOD, SAVED, UNSAVABLE, FAILED = "good", "saved", "could not be saved", "failed"


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the length of its response: greedy, so that it is always the same."""

    prompt: str
    chat: bool
    max_tokens: int

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"

    def body(self, model: str, *, stream: bool) -> Json:
        given: Json = {"messages": [{"role": "user", "content": self.prompt}]} if self.chat else {"prompt": self.prompt}
        options: Json = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return {"model": model, **given, **options, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Break:
    """A try that brought no whole answer. `lost`: the connection ended without a word."""

    at: float  # seconds since the epoch
    why: str
    lost: bool
    final: bool = False


@dataclass(slots=True)
class Answer:
    """What a client holds in its hands."""

    text: str = ""
    tokens: int = 0
    finish_reason: str = ""
    last_id: str = ""
    done: bool = False
    tries: int = 0
    last_event_at: float = 0.0  # when anything came last
    breaks: list[Break] = field(default_factory=list)

    def take(self, event: bytes) -> Break | None:
        """One whole event; a Break when it ends the stream too early."""
        self.last_event_at = time.time()
        for line in event.split(b"\n"):
            name, _, value = line.partition(b": ")
            if name == b"id":
                self.last_id = value.decode()
            elif name == b"data" and value == b"[DONE]":
                self.done = True
            elif name == b"data":
                chunk = json.loads(value)
                if error := chunk.get("error"):
                    return Break(time.time(), f"error event {error.get('code')}: {error.get('message')}", lost=False)
                self.add(chunk)
        return None

    def add(self, chunk: Json) -> None:
        for choice in chunk.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or choice
            self.text += part.get("content") or part.get("text") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if usage := chunk.get("usage"):
            self.tokens = usage["completion_tokens"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Characters of the undisturbed answer that are not there, and characters that are not its own."""

    missing: int = 0
    added: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How one request ended: in exactly one class."""

    kind: str
    reason: str
    stream: bool
    began: float  # seconds since the epoch
    ended: float
    tokens: int
    tries: int
    breaks: tuple[Break, ...]
    difference: Difference
    request_id: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def difference(text: str, reference: str, *, whole: bool) -> Difference:
    """Of a part, only what it has is compared."""
    expected = reference if whole else reference[: len(text)]
    if text == expected:
        return Difference()
    missing = added = 0
    for kind, start, end, first, last in difflib.SequenceMatcher(None, expected, text, autojunk=False).get_opcodes():
        if kind != "equal":
            missing, added = missing + end - start, added + last - first
    return Difference(missing, added)


def ending(answer: Answer, question: Question, reference: str, sent: "Sent") -> Ending:
    """The class of a request that is over."""
    whole = answer.done and answer.finish_reason == "length" and answer.tokens == question.max_tokens
    apart = difference(answer.text, reference, whole=answer.done)
    kind, reason = _class_of(answer, whole=whole, same=apart == Difference())
    return Ending(
        kind, reason, sent.stream, sent.at, time.time(), answer.tokens, answer.tries, tuple(answer.breaks), apart,
        sent.request_id,
    )  # fmt: skip


def _class_of(answer: Answer, *, whole: bool, same: bool) -> tuple[str, str]:
    if not same:
        return FAILED, "the text is not that of the undisturbed run"
    if not answer.done:
        last = answer.breaks[-1]
        gone = last.final and "stream_gone" in last.why
        return (UNSAVABLE if gone else FAILED), last.why
    if not whole:
        return FAILED, f"ended after {answer.tokens} tokens with {answer.finish_reason or 'no finish_reason'}"
    if not answer.breaks:
        return GOOD, ""
    how = "Last-Event-ID" if answer.last_id else "sent again"
    return SAVED, f"{how} after {answer.breaks[0].why.partition(':')[0]}"


@dataclass(frozen=True, slots=True)
class Sent:
    """What is known of a request before its answer."""

    stream: bool
    at: float
    request_id: str


class Client:
    """Sends questions to one URL for one model."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model

    async def ask(self, question: Question, request_id: str, *, stream: bool) -> tuple[Answer, Sent]:
        """Until the answer is whole, or it is clear that it never will be."""
        answer, sent = Answer(), Sent(stream, time.time(), request_id)
        while not answer.done and answer.tries < TRIES:
            answer.tries += 1
            broken = await self._try(question, answer, sent)
            if broken is None:
                break
            answer.breaks.append(broken)
            silence_s = broken.at - max(sent.at, answer.last_event_at)
            if broken.final or silence_s > PATIENCE_S + (sent.stream and SILENCE_S):
                break
            await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (answer.tries - 1), LONGEST_PAUSE_S))
        return answer, sent

    async def _try(self, question: Question, answer: Answer, sent: Sent) -> Break | None:
        headers = {REQUEST_ID: sent.request_id} | ({RESUMABLE: "1"} if sent.stream else {})
        if answer.last_id:
            headers[LAST_EVENT_ID] = answer.last_id
        limit = (
            aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_S)
            if sent.stream
            else aiohttp.ClientTimeout(total=SHORT_TIMEOUT_S, sock_connect=10)
        )
        body = question.body(self._model, stream=sent.stream)
        try:
            async with self._session.post(
                self._url + question.path, json=body, headers=headers, timeout=limit
            ) as response:
                if response.status != 200:
                    return _refused(response.status, await response.text(), first=answer.tries == 1)
                if sent.stream:
                    return await _read(response, answer)
                answer.add(await response.json())
                answer.done = True
                return None
        except TimeoutError as error:
            return Break(time.time(), f"nothing came for too long ({type(error).__name__})", lost=False)
        except (aiohttp.ClientError, OSError) as error:
            return Break(time.time(), type(error).__name__, lost=True)


async def _read(response: aiohttp.ClientResponse, answer: Answer) -> Break | None:
    """Whole events only: an id counts for a whole event."""
    rest = b""
    async for chunk in response.content.iter_any():
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            if broken := answer.take(event):
                return broken
    return None if answer.done else Break(time.time(), "the stream ended without [DONE]", lost=True)


def _refused(status: int, text: str, *, first: bool) -> Break:
    """One who comes back may meet a revision whose pod is just starting again."""
    try:
        error = json.loads(text)["error"]
        why = f"{status} {error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        why = f"{status}: {text[:200]}"
    return Break(time.time(), why, lost=False, final=status not in ((429,) if first else (429, 502, 503)))
