"""One leg of a pair: a copy at one server, from sending it to the outcome. Nothing of the response is kept."""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp
from yarl import URL

from ..judging.outcome import OutcomeRecorder, RequestOutcome
from ..settings import GatewaySettings
from ..upstream.endings import is_death
from ..upstream.exchange import UpstreamRequest
from ..upstream.isolation import TenantIsolation
from ..wire.errors import reports_crash
from ..wire.inference import infers
from ..wire.predictions import MAX_BYTES as MAX_PREDICTED_BYTES
from ..wire.predictions import Predictions, read_predictions
from ..wire.responses import ERRORS, HUNG, KINDS, NON_FINITE
from ..wire.sse import CONTENT_TYPE, EventAligner, split_crash_comment
from .endpoints import BUSY_STATUSES, MirrorEndpoints
from .mirrored_request import MAX_KEPT_BYTES
from .room import MirrorMemory
from .shadow_request import ShadowRequest
from .transcript import ChoiceTexts, Transcript

OnDeath = Callable[[UpstreamRequest, str], None]
_Posting = AbstractAsyncContextManager[aiohttp.ClientResponse]
# Whole responses up to this size are read for failures.
MAX_WHOLE_BYTES = 1 << 20
MAX_ERROR_BYTES = 16 << 10
# Multiplies the time after which a server counts as hung: while it generates a whole response, it sends nothing.
_WHOLE_PATIENCE = 5
_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_OF_TEXT = frozenset(KINDS) - {ERRORS, HUNG, NON_FINITE}


def copy_of(original: UpstreamRequest) -> ShadowRequest:
    """A client's request, not yet marked as a copy."""
    return ShadowRequest(original.path_qs, original.headers, original.body, original.isolation, original.adapter)


class Leg(NamedTuple):
    """Where a leg goes. Both legs of two revisions of an adapter go to one pod."""

    url: str
    revision: str


@dataclass(frozen=True, slots=True)
class LegOutcome:
    """`readable`: the text of the response was read for failures. `answered`: there was a response of status 200.

    `busy`: the server answered 429 or 503. `texts`: of the response's choices; None where there are none or they were
    not kept. `predictions`: of a classic model; None where it has none that can be read.
    """

    outcome: RequestOutcome
    readable: bool = True
    answered: bool = True
    busy: bool = False
    texts: ChoiceTexts | None = None
    predictions: Predictions | None = None


@dataclass(slots=True)
class _Begun:
    """State of a leg while its response is read. It is used also where the response breaks off.

    `predicted`: the response of a classic model so far; None where it is too long to be read. `headers`: of it.
    """

    answered: bool = False
    busy: bool = False
    died: bool = False  # its engine, with it in flight
    transcript: Transcript | None = None
    predicted: bytearray | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    held_bytes: int = 0


def without_text(leg: LegOutcome, other: RequestOutcome) -> RequestOutcome:
    """`other`, without failures of its text where the text of this leg's response was not read for failures."""
    return other if leg.readable else other.without(_OF_TEXT)


def alike(canary: LegOutcome, twin: LegOutcome) -> tuple[RequestOutcome, RequestOutcome]:
    """Both outcomes by the same measure: where one response's text was not read, failures of text count in neither.

    A prediction that is no finite number is a failure where both responses have predictions that can be read.
    """
    if canary.predictions and twin.predictions and canary.predictions.whole and twin.predictions.whole:
        return _with_numbers(canary.outcome, canary.predictions), _with_numbers(twin.outcome, twin.predictions)
    if canary.readable and twin.readable:
        return canary.outcome, twin.outcome
    return canary.outcome.without(_OF_TEXT), twin.outcome.without(_OF_TEXT)


def _with_numbers(outcome: RequestOutcome, predictions: Predictions) -> RequestOutcome:
    return outcome if predictions.finite else outcome.having(NON_FINITE)


class LegSender:
    """Sends legs, once each: there is no retry, and a failure is the leg's outcome.

    `memory` counts the bytes of responses that are held.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        session: aiohttp.ClientSession,
        memory: MirrorMemory,
        endpoints: MirrorEndpoints,
        clock: Callable[[], float],
        on_death: OnDeath = lambda *_: None,
        *,
        isolation: TenantIsolation,
    ) -> None:
        """`on_death`: called when an engine died with a leg in flight."""
        self._on_death = on_death
        self._settings, self._isolation = settings, isolation
        self._session = session
        self.memory = memory
        self.endpoints = endpoints
        self._clock = clock

    async def send(
        self,
        url: str,
        copy: ShadowRequest,
        original: UpstreamRequest,
        *,
        revision: str,
        keep: bool = False,
        predicted_bytes: int = MAX_PREDICTED_BYTES,
    ) -> LegOutcome:
        """Sends `copy` to the server at `url` for a revision, and returns the outcome.

        `original`: the client's request. `keep`: the outcome gets the texts of the response, unless they are long.
        `predicted_bytes`: of a classic model, responses up to this size are read for predictions.
        """
        found: list[RequestOutcome] = []
        patience_s = (self._settings.hung_after_s or math.inf) * (1 if original.stream else _WHOLE_PATIENCE)
        recorder = OutcomeRecorder(self._clock(), found.append, streams=original.stream, patience_s=patience_s)
        copy = copy.at(revision, self._isolation.engine_at(url))
        readable, begun = True, _Begun(transcript=Transcript(streamed=original.stream) if keep else None)
        if infers(copy.path):
            begun.predicted = bytearray()
        try:
            with self.endpoints.asking(url):
                async with asyncio.timeout(self._settings.mirror_timeout_s):
                    readable = await self._read(url, copy, original, recorder, begun)
        # A response that is no HTTP raises one of these too.
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            recorder.fail(self._clock())
            begun.died = begun.died or is_death(error)
        finally:
            self.memory.shrink(original.whose, begun.held_bytes)
        if begun.died:
            self._on_death(original, url)
        outcome = found[0].without(original.excused)
        texts = begun.transcript.texts() if begun.transcript and not outcome.bad else None
        predicted = begun.predicted if begun.predicted and len(begun.predicted) <= predicted_bytes else None
        predictions = None
        if predicted and not outcome.bad:
            predictions = read_predictions(copy.path, begun.headers, bytes(predicted))
        return LegOutcome(outcome, readable, begun.answered, begun.busy, texts, predictions)

    async def _read(
        self, url: str, copy: ShadowRequest, original: UpstreamRequest, recorder: OutcomeRecorder, begun: _Begun
    ) -> bool:
        async with self._post(url, copy) as response:
            if response.status in BUSY_STATUSES:
                begun.busy = True
                self.endpoints.rest(url)
            if response.status != 200:
                body = await response.content.read(MAX_ERROR_BYTES) if response.status >= 500 else b""
                recorder.fail(self._clock(), body)
                begun.died = reports_crash(body)
                return True
            begun.answered, begun.headers = True, response.headers
            if response.headers.get("Content-Type", "").startswith(CONTENT_TYPE):
                return await self._read_stream(response, original, recorder, begun)
            return await self._read_whole(response, original, recorder, begun)

    def _keep(self, chunk: bytes, original: UpstreamRequest, begun: _Begun) -> None:
        """Adds a part of the response to what a comparison takes; of a long response nothing is kept.

        Predictions are kept whether there is room or not, because a pair with them has its room from its start: else a
        canary could disagree because the gateway had none.
        """
        if begun.predicted is not None:
            begun.predicted += chunk
            if len(begun.predicted) > MAX_PREDICTED_BYTES:
                begun.predicted = None
        if begun.transcript is None:
            return
        begun.held_bytes += len(chunk)
        self.memory.force(original.whose, len(chunk))
        if begun.held_bytes > MAX_KEPT_BYTES or not self.memory.has_room(original.whose):
            begun.transcript = None
        else:
            begun.transcript.feed(chunk)

    async def _read_stream(
        self,
        response: aiohttp.ClientResponse,
        original: UpstreamRequest,
        recorder: OutcomeRecorder,
        begun: _Begun,
    ) -> bool:
        aligner, crashed = EventAligner(), False
        while chunk := await response.content.readany():
            recorder.server_sent(self._clock())
            self._keep(chunk, original, begun)
            events, crashed = split_crash_comment(aligner.feed(chunk))
            if events:
                recorder.add_events(events, self._clock())
            recorder.wait_for_server(self._clock())
        if crashed or aligner.reports_crash():
            begun.died = True
            recorder.fail(self._clock())
        recorder.complete_stream(self._clock(), wants_json=original.wants_json)
        return True

    async def _read_whole(
        self,
        response: aiohttp.ClientResponse,
        original: UpstreamRequest,
        recorder: OutcomeRecorder,
        begun: _Begun,
    ) -> bool:
        kept, whole, held_bytes = [], original.writes_text, 0
        try:
            while chunk := await response.content.readany():
                recorder.server_sent(self._clock())
                self._keep(chunk, original, begun)
                recorder.wait_for_server(self._clock())
                whole = whole and held_bytes + len(chunk) <= MAX_WHOLE_BYTES
                whole = whole and self.memory.has_room(original.whose, len(chunk))
                if whole:
                    kept.append(chunk)
                    held_bytes += len(chunk)
                    self.memory.force(original.whose, len(chunk))
            body = b"".join(kept) if whole else None
            recorder.complete(body, self._clock(), wants_json=original.wants_json)
        finally:
            self.memory.shrink(original.whose, held_bytes)
        return whole

    async def fetch(self, url: str, request: ShadowRequest, route: str, revision: str) -> bytes | None:
        """The whole response to a request that this gateway wrote itself, for a revision of a route.

        None unless the response has status 200, arrives in time and has at most `MAX_WHOLE_BYTES`.
        """
        held_bytes, kept = 0, []
        request = request.at(revision, self._isolation.engine_at(url))
        try:
            with self.endpoints.asking(url):
                async with asyncio.timeout(self._settings.mirror_timeout_s), self._post(url, request) as response:
                    while chunk := await response.content.readany():
                        held_bytes += len(chunk)
                        self.memory.force(route, len(chunk))
                        if response.status != 200 or held_bytes > MAX_WHOLE_BYTES:
                            return None
                        kept.append(chunk)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        finally:
            self.memory.shrink(route, held_bytes)
        return b"".join(kept)

    def _post(self, url: str, copy: ShadowRequest) -> _Posting:
        return self._session.post(
            URL(url + copy.path_qs, encoded=True),
            data=b"".join(self._isolation.parts(url, copy.path, copy.body, copy.isolation)),
            headers=copy.headers,
            allow_redirects=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
        )
