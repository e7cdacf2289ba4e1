"""The queue of mirrored requests: bounded in number, bytes and time; clients never wait for it."""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from slipway_contracts.counters import Agreement

from ..balancing.load_balancer import LoadBalancer
from ..judging.agreement import compare
from ..judging.samples import TEXT, TOKENS
from ..limits.budget import unlimited
from ..routing.mirroring import is_compared
from ..routing.table import equivalent_revisions
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..upstream.endings import is_death
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..upstream.isolation import TenantIsolation
from ..upstream.tenant_proof import TenantSigner
from ..wire.inference import is_predict
from ..wire.predictions import read_predictions
from ..wire.sse import CONTENT_TYPE
from .endpoints import BUSY_STATUSES, MirrorEndpoints
from .leg import Leg, OnDeath, copy_of
from .mirrored_request import MirroredRequest, read
from .room import MirrorMemory, MirrorPlaces
from .scoring import build_scoring_request, count_flips
from .shadow_request import RepeatableRequest, ShadowRequest, make_repeatable, make_shadow
from .transcript import ChoiceTexts, Transcript

log = logging.getLogger(__name__)

# Results of mirrored requests; each one has exactly one.
COMPARED, ANSWERED, REFUSED, FAILED, TIMEOUT = "compared", "answered", "refused", "failed", "timeout"
BUSY, QUEUE_FULL, TOO_LARGE, NO_ENDPOINT = "busy", "queue_full", "too_large", "no_endpoint"
WITHDRAWN, SUSPECT, CANCELLED = "withdrawn", "suspect", "cancelled"

_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class ShadowResponse:
    """What one server answered: `result` is ANSWERED, or why there is nothing to compare."""

    result: str
    texts: ChoiceTexts | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class MirrorQueue:
    """Mirrored requests of all models of one gateway. `busy`: whether clients need the capacity of a route."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        session: aiohttp.ClientSession,
        busy: Callable[[str], bool],
        *,
        memory: MirrorMemory | None = None,
        signer: TenantSigner | None = None,
        endpoints: MirrorEndpoints | None = None,
        isolation: TenantIsolation | None = None,
        is_suspect: Callable[[UpstreamRequest], bool] = lambda _: False,
        on_death: OnDeath = lambda *_: None,
    ) -> None:
        """`memory` counts the bytes that mirrored requests hold.

        `is_suspect`: whether an engine died with the same bytes in flight. `on_death`: called when one did.
        """
        self._is_suspect, self._on_death = is_suspect, on_death
        self._signer = signer or TenantSigner("")
        self._isolation = isolation or TenantIsolation(balancer.published, self._signer)
        self._settings = settings
        self._balancer = balancer
        self._metrics = metrics
        self._session = session
        self._busy = busy
        self._clock = asyncio.get_running_loop().time
        self._waiting: deque[MirroredRequest] = deque()
        self._running: set[asyncio.Task[str]] = set()
        self._memory = memory or MirrorMemory(unlimited(), settings.mirror_max_bytes)
        running, waiting = settings.mirror_max_inflight, settings.mirror_max_queue
        self._places, self._turns = MirrorPlaces(running + waiting), MirrorPlaces(running)
        self._passing = MirrorPlaces(waiting)  # responses that are kept while they pass to their clients
        self._endpoints = endpoints or MirrorEndpoints(balancer.in_flight, self._clock)
        self._closed = False

    # -- called while a client's request runs: nothing here waits

    def copy_of(
        self, outgoing: UpstreamRequest, response: UpstreamResponse, request_id: str, headers: Mapping[str, str]
    ) -> MirroredRequest | None:
        """The copy of a request, to `offer` when the client has its response; None where the request is not mirrored.

        `headers`: the client's.
        """
        if (
            response.status != 200
            or outgoing.revision
            or outgoing.method != "POST"
            or self._closed
            or not self._settings.mirror_max_inflight
        ):
            return None
        found = self._balancer.mirror(response.endpoint, request_id, headers)
        if found is None:
            return None
        route, mirror, epoch = found
        # A comparison of predictions costs no further request, so each one is compared.
        predicts = mirror.tolerance is not None and outgoing.computes and is_predict(outgoing.path)
        percentage = self._settings.mirror_compare_percentage
        compared = predicts or (outgoing.writes_text and is_compared(route, request_id, percentage))
        kept = compared and self._passing.take(response.endpoint.route)
        mirrored = MirroredRequest(
            outgoing,
            request_id,
            response.endpoint,
            mirror,
            epoch,
            response.streams_events,
            kept,
            response.headers,
            passing=kept,
        )
        if not mirrored.streamed:
            # A response that did not fit into the first read is too long to keep.
            mirrored.compared = kept and response.rest is None
            mirrored.add_part(response.start)
        return mirrored

    def passed(self, mirrored: MirroredRequest) -> None:
        """The response of a request that has a copy has ended, well or not."""
        if mirrored.passing:
            mirrored.passing = False
            self._passing.leave(mirrored.endpoint.route)

    def offer(self, mirrored: MirroredRequest) -> None:
        """The client has its response: the copy runs, waits for its turn, or is dropped, and is counted once."""
        if dropped := self._dropped(mirrored):
            self._metrics.mirrored(mirrored.endpoint.model, mirrored.mirror.revision, dropped)
            return
        self._memory.force(mirrored.endpoint.route, mirrored.size_bytes)
        self._waiting.append(mirrored)
        self._start()

    def _dropped(self, mirrored: MirroredRequest) -> str:
        settings = self._settings
        if self._closed:
            return CANCELLED
        if self._busy(mirrored.endpoint.route):
            return BUSY
        route, size_bytes = mirrored.endpoint.route, len(mirrored.outgoing.body)
        if size_bytes > settings.mirror_max_body_bytes or not self._memory.has_room(route, mirrored.size_bytes):
            return TOO_LARGE
        return "" if self._places.take(route) else QUEUE_FULL

    async def close(self) -> None:
        """Stops mirroring and cancels what is in flight."""
        self._closed = True
        for task in self._running:
            task.cancel()
        while self._waiting:
            self._end(self._waiting.popleft(), CANCELLED)
        await asyncio.gather(*self._running, return_exceptions=True)

    # -- one copy

    def _start(self) -> None:
        while (mirrored := self._next()) is not None:
            task = asyncio.create_task(self._run(mirrored))
            self._running.add(task)
            # A task that is cancelled before it began runs none of its code: so the end is counted here.
            task.add_done_callback(functools.partial(self._ended, mirrored))
        self._metrics.mirroring.set(len(self._running))

    def _next(self) -> MirroredRequest | None:
        """The one that waits longest of those whose namespace has a turn; it leaves the queue."""
        for place, mirrored in enumerate(self._waiting):
            if self._turns.take(mirrored.endpoint.route):
                del self._waiting[place]
                return mirrored
        return None

    def _ended(self, mirrored: MirroredRequest, task: asyncio.Task[str]) -> None:
        self._running.discard(task)
        self._turns.leave(mirrored.endpoint.route)
        self._end(mirrored, CANCELLED if task.cancelled() else task.result())
        self._start()

    def _end(self, mirrored: MirroredRequest, result: str) -> None:
        self._places.leave(mirrored.endpoint.route)
        self._memory.shrink(mirrored.endpoint.route, mirrored.size_bytes)
        self._metrics.mirrored(mirrored.endpoint.model, mirrored.mirror.revision, result)

    async def _run(self, mirrored: MirroredRequest) -> str:
        try:
            return await self._carry(mirrored)
        except Exception:
            log.exception("a mirrored request failed inside of the gateway", extra={"request_id": mirrored.request_id})
            return FAILED

    async def _carry(self, mirrored: MirroredRequest) -> str:
        if self._busy(mirrored.endpoint.route):
            return BUSY
        if not self._balancer.mirrors(mirrored.endpoint, mirrored.mirror):
            return WITHDRAWN
        if self._is_suspect(mirrored.outgoing):
            return SUSPECT
        urls = self._balancer.published.urls(mirrored.endpoint.route, mirrored.mirror.revision)
        canary = self._endpoints.choose(urls, mirrored.outgoing.key)
        if not canary:
            return BUSY if urls else NO_ENDPOINT
        original = mirrored.outgoing
        shadow = make_shadow(copy_of(original))
        self._signer.sign(shadow.headers, mirrored.endpoint.deployment)
        if mirrored.compared and is_predict(shadow.path):
            return await self._compare_predictions(mirrored, shadow, canary)
        repeatable = make_repeatable(shadow, mirrored.request_id) if mirrored.compared else None
        if repeatable is None:
            return (await self._ask(mirrored, Leg(canary, mirrored.mirror.revision), shadow, keep=False)).result
        return await self._compare(mirrored, repeatable, canary)

    async def _compare_predictions(self, mirrored: MirroredRequest, shadow: ShadowRequest, canary: str) -> str:
        """Compares canary's predictions with stable's, counts that and returns the result of the mirrored request.

        A canary that refuses the request for lack of room is not counted.
        """
        response = await self._ask(mirrored, Leg(canary, mirrored.mirror.revision), shadow, keep=True)
        tolerance = mirrored.mirror.tolerance
        if response.result == REFUSED or tolerance is None:
            return response.result
        stable = mirrored.predictions()
        found = compare(stable, read_predictions(shadow.path, response.headers, response.body), tolerance)
        if response.result != ANSWERED and found is not Agreement.UNREAD:
            found = Agreement.FAILED
        mirrored.epoch.agreed(mirrored.mirror.revision, mirrored.outgoing.key, found)
        return found if found in (Agreement.AGREED, Agreement.DISAGREED) else response.result

    async def _compare(self, mirrored: MirroredRequest, repeatable: RepeatableRequest, canary: str) -> str:
        """Compares canary's response with stable's, counts that and returns the result of the mirrored request.

        The response of a second stable pod is compared too: how often stable differs from itself is the floor.
        """
        same = self._balancer.published.urls(mirrored.endpoint.route, *equivalent_revisions(mirrored.endpoint.revision))
        others = [url for url in same if url != mirrored.endpoint.url]
        own, revision = mirrored.endpoint.revision, mirrored.mirror.revision
        second = Leg(self._endpoints.choose(others, mirrored.outgoing.key), own)
        again = Leg(mirrored.endpoint.url if repeatable.repeat_stable else "", own)
        tested = Leg(canary, revision)
        responses = await self._ask_all(mirrored, repeatable.request, tested, second, again)
        texts = responses[again].texts if again.url else await mirrored.texts()
        result = responses[tested].result
        if (
            texts is None
            or responses[tested].texts is None
            or (others and (not second.url or responses[second].texts is None))
        ):
            return result
        differs = [int(responses[leg].texts != texts) for leg in (tested, second) if leg.url]
        mirrored.epoch.compared(revision, TEXT, differs[0], differs[1] if second.url else None)
        if second.url and (score := build_scoring_request(repeatable.request, texts)):
            self._signer.sign(score.headers, mirrored.endpoint.deployment)
            scored = await self._ask_all(mirrored, score, tested, second)
            found = [count_flips(scored[leg].body, texts) for leg in (tested, second)]
            if found[0] is not None and found[1] is not None:
                mirrored.epoch.compared(revision, TOKENS, found[0], found[1])
        return COMPARED

    async def _ask_all(self, mirrored: MirroredRequest, shadow: ShadowRequest, *legs: Leg) -> dict[Leg, ShadowResponse]:
        """The response of each leg that has a URL. All get the request at once, under the same conditions."""
        repeatable = [leg for leg in legs if leg.url]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(mirrored, leg, shadow, keep=True)) for leg in repeatable]
        return dict(zip(repeatable, (task.result() for task in tasks), strict=True))

    async def _ask(self, mirrored: MirroredRequest, leg: Leg, shadow: ShadowRequest, *, keep: bool) -> ShadowResponse:
        """Reads one server's response to its end and keeps it if `keep` is set. Failures are a result too."""
        url = leg.url
        shadow = shadow.at(leg.revision, self._isolation.engine_at(url))
        try:
            with self._endpoints.asking(url):
                async with asyncio.timeout(self._settings.mirror_timeout_s):
                    return await self._read(mirrored, url, shadow, keep=keep)
        except TimeoutError:
            return ShadowResponse(TIMEOUT)
        # Invalid HTTP raises one of these too.
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if is_death(error):
                self._on_death(mirrored.outgoing, url)
            return ShadowResponse(FAILED)

    async def _read(self, mirrored: MirroredRequest, url: str, shadow: ShadowRequest, *, keep: bool) -> ShadowResponse:
        route = mirrored.endpoint.route
        posting = self._session.post(
            URL(url + shadow.path_qs, encoded=True),
            data=b"".join(self._isolation.parts(url, shadow.path, shadow.body, shadow.isolation)),
            headers=shadow.headers,
            allow_redirects=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
        )
        async with posting as response:
            if response.status in BUSY_STATUSES:
                self._endpoints.rest(url)
                return ShadowResponse(REFUSED)
            if response.status != 200:
                return ShadowResponse(FAILED)
            transcript = Transcript(streamed=response.headers.get("Content-Type", "").startswith(CONTENT_TYPE))
            counted = 0
            try:
                while chunk := await response.content.readany():
                    if keep:
                        await read(transcript, chunk)
                        self._memory.force(route, transcript.size_bytes - counted)
                        counted = transcript.size_bytes
                body, texts = transcript.body, keep and not is_predict(shadow.path)
                return ShadowResponse(ANSWERED, transcript.texts() if texts else None, body, response.headers)
            finally:
                self._memory.shrink(route, counted)
