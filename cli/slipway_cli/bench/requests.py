"""Sends one request of a load test and measures its response: a stream of a chat, or a prediction."""

import asyncio
import json
import time
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import aiohttp

from slipway_cli.bench.prompts import Tokens, prompt
from slipway_cli.bench.sample import Sample
from slipway_cli.errors import CommandError, Unreachable
from slipway_cli.sizing.lengths import Lengths, places

_MOST_BYTES = 64 << 20  # of a response
_MOST_LINE = 4 << 20
_MOST_ERROR_BYTES = 64 << 10
_MOST_CAUSE = 80
_ONE_FOR_A_WORD = Tokens()
_TRIAL_WORDS = (64, 192)  # of two requests that show how many tokens a word has


def session(api_key: str) -> aiohttp.ClientSession:
    """A session with as many connections as requests in progress; no cache of a gateway answers or keeps them."""
    headers = {"User-Agent": "slipway", "Cache-Control": "no-store"} | (
        {"Authorization": f"Bearer {api_key}"} if api_key else {}
    )
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=aiohttp.ClientTimeout(total=None)
    )


class _WrongStream(Exception):
    """A stream with an error event, or one that is no stream of events."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where requests go: `url` without a path, the headers of each, and the longest time for one."""

    session: aiohttp.ClientSession
    url: str
    model: str
    timeout_s: float

    async def post(self, path: str, body: bytes, sample: Sample, began: float) -> aiohttp.ClientResponse | None:
        """A response with status 200; None with the cause in `sample` for others."""
        response = await self.session.post(
            self.url + path, data=body, headers={"Content-Type": "application/json"}, allow_redirects=False
        )
        if response.status == 200:
            return response
        try:
            sample.error = _cause(response.status, await response.content.read(_MOST_ERROR_BYTES))
        finally:
            sample.latency_s = time.monotonic() - began
            response.close()
        return None


@dataclass(frozen=True, slots=True)
class Chats:
    """Streams of /v1/chat/completions, with prompts and outputs of lengths from their distributions."""

    gateway: Gateway
    prompts: Lengths
    outputs: Lengths
    mark: str  # of this run
    tokens: Tokens = _ONE_FOR_A_WORD
    ignores_eos: bool = False

    async def send(self, number: int) -> Sample:
        """Send the request with this number. What goes wrong is the `error` of the sample."""
        place, output_place = places(number)
        return await self._send(number, self.tokens.words(self.prompts.at(place)), self.outputs.at(output_place))

    async def calibrated(self) -> tuple["Chats", bool]:
        """How many tokens words have, by two requests; and whether the server counts tokens.

        Raises:
            CommandError: a request fails.
        """
        counted: list[tuple[int, int]] = []
        for number, words in enumerate(_TRIAL_WORDS):
            sample = await self._send(-1 - number, words, 1)
            if sample.error:
                raise _refused(self.gateway, sample.error)
            if sample.prompt_tokens is not None:
                counted.append((words, sample.prompt_tokens))
        if len(counted) < len(_TRIAL_WORDS):
            return self, False
        return replace(self, tokens=Tokens.fitted(*counted)), True

    async def _send(self, number: int, words: int, most_tokens: int) -> Sample:
        sample = Sample(words=words)
        body = {
            "model": self.gateway.model,
            "messages": [{"role": "user", "content": prompt(self.mark, number, words)}],
            "max_tokens": most_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignores_eos:
            body["ignore_eos"] = True
        return await _measured(sample, self._relay(json.dumps(body).encode(), sample), self.gateway.timeout_s)

    async def _relay(self, body: bytes, sample: Sample) -> None:
        began = time.monotonic()
        response = await self.gateway.post("/v1/chat/completions", body, sample, began)
        if response is None:
            return
        async with response:
            size, rest = 0, b""
            async for chunk in response.content.iter_any():
                at = time.monotonic() - began
                size += len(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    _read_line(line.strip(), sample, at)
                if size > _MOST_BYTES or len(rest) > _MOST_LINE:
                    raise _WrongStream("the response is too long")
        sample.latency_s = time.monotonic() - began
        if sample.first_s is None:
            raise _WrongStream("no event in the stream")
        if not sample.is_whole:
            raise _WrongStream("the stream broke off")


@dataclass(frozen=True, slots=True)
class Predictions:
    """The same body again and again, for a classic model: /v2/models/NAME/infer, or :predict for `instances`."""

    gateway: Gateway
    body: bytes
    path: str

    async def send(self, number: int) -> Sample:
        """Send it once more. What goes wrong is the `error` of the sample."""
        sample = Sample()
        return await _measured(sample, self._exchange(sample), self.gateway.timeout_s)

    async def _exchange(self, sample: Sample) -> None:
        began = time.monotonic()
        response = await self.gateway.post(self.path, self.body, sample, began)
        if response is None:
            return
        size = 0
        async with response:
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > _MOST_BYTES:
                    raise _WrongStream("the response is too long")
        sample.latency_s = time.monotonic() - began

    async def check(self) -> None:
        """Raises CommandError where a first request fails."""
        sample = await self.send(0)
        if sample.error:
            raise _refused(self.gateway, sample.error)


def path_of(model: str, body: Any) -> str:
    """The path for a body, by its form.

    Raises:
        CommandError: it is neither a request of the Open Inference Protocol nor one with instances.
    """
    name = quote(model, safe="/")
    if isinstance(body, dict) and "inputs" in body:
        return f"/v2/models/{name}/infer"
    if isinstance(body, dict) and "instances" in body:
        return f"/v1/models/{name}:predict"
    raise CommandError("the body has neither `inputs` (Open Inference Protocol) nor `instances`")


async def _measured(sample: Sample, exchange: Any, timeout_s: float) -> Sample:
    """The sample after the exchange, with the cause of whatever ended it."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            await exchange
    except TimeoutError:
        sample.error = f"no whole response in {timeout_s:g} s"
    except _WrongStream as error:
        sample.error = _short(str(error))
    except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
        sample.error = type(error).__name__
    if sample.error:
        sample.latency_s = time.monotonic() - began
    return sample


def _read_line(line: bytes, sample: Sample, at: float) -> None:
    """One line of a stream of events. Comments, such as those of a gateway that waits, are no events."""
    if not line.startswith(b"data:"):
        return
    data = line[5:].strip()
    if data == b"[DONE]":
        sample.is_whole = True
        return
    event = json.loads(data)
    if not isinstance(event, dict):
        raise _WrongStream("an event is no object")
    if event.get("error"):
        raise _WrongStream(f"error event {_code(event['error'])}")
    if isinstance(usage := event.get("usage"), dict):
        sample.prompt_tokens = _count(usage.get("prompt_tokens"))
        sample.output_tokens = _count(usage.get("completion_tokens"))
    if event.get("choices"):
        sample.first_s = at if sample.first_s is None else sample.first_s
        sample.last_s = at
        sample.events += 1


def _count(number: object) -> int | None:
    is_count = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31
    return number if is_count else None  # type: ignore[return-value]


def _cause(status: int, body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return str(status)
    return _short(f"{status} {_code(error)}")


def _code(error: object) -> str:
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or "")
    return str(error)


def _short(text: str) -> str:
    return " ".join("".join(sign for sign in text if sign.isprintable()).split())[:_MOST_CAUSE]


def _refused(gateway: Gateway, cause: str) -> CommandError:
    text = f"the first request of {gateway.model} at {gateway.url} failed: {cause}"
    if cause[:3].isdigit():
        return CommandError(f"{text}: set SLIPWAY_API_KEY" if cause.startswith("401") else text)
    return Unreachable(f"{text}; is --url right?")
