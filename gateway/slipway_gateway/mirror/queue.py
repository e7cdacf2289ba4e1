"""The queue of mirrored requests: bounded in number, bytes and time; clients never wait for it."""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from ..balancing.load_balancer import LoadBalancer
from ..judging.agreement import Agreement, compare
from ..judging.samples import TEXT, TOKENS
from ..limits.budget import Account, unlimited
from ..routing.mirroring import is_compared
from ..routing.table import equivalent_revisions
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..upstream.tenant_proof import TenantSigner
from ..wire.inference import is_predict
from ..wire.predictions import read_predictions
from ..wire.sse import CONTENT_TYPE
from .endpoints import BUSY_STATUSES, MirrorEndpoints
from .mirrored_request import MirroredRequest, read
from .scoring import build_scoring_request, count_flips
from .shadow_request import RepeatableRequest, ShadowRequest, make_repeatable, make_shadow
from .transcript import ChoiceTexts, Transcript

log = logging.getLogger(__name__)

# Results of mirrored requests; each one has exactly one.
COMPARED, ANSWERED, REFUSED, FAILED, TIMEOUT = "compared", "answered", "refused", "failed", "timeout"
BUSY, QUEUE_FULL, TOO_LARGE, NO_ENDPOINT = "busy", "queue_full", "too_large", "no_endpoint"
WITHDRAWN, CANCELLED = "withdrawn", "cancelled"

_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class ShadowResponse:
    """What one server answered: `result` is ANSWERED, or why there is nothing to compare."""

    result: str
    texts: ChoiceTexts | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class MirrorQueue:
    """Mirrored requests of all models of one gateway. `busy`: whether clients need the capacity."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        session: aiohttp.ClientSession,
        busy: Callable[[], bool],
        *,
        account: Account | None = None,
        signer: TenantSigner | None = None,
        endpoints: MirrorEndpoints | None = None,
    ) -> None:
        """`account` counts the bytes that mirrored requests hold in memory."""
        self._signer = signer or TenantSigner("")
        self._settings = settings
        self._balancer = balancer
        self._metrics = metrics
        self._session = session
        self._busy = busy
        self._clock = asyncio.get_running_loop().time
        self._waiting: deque[MirroredRequest] = deque()
        self._running: set[asyncio.Task[str]] = set()
        self._account = account or unlimited()
        self._passing = 0
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
        # At most this many responses are kept while they pass to their clients.
        few = self._passing < self._settings.mirror_max_queue
        # A comparison of predictions costs no further request, so each one is compared.
        predicts = mirror.tolerance is not None and outgoing.computes and is_predict(outgoing.path)
        percentage = self._settings.mirror_compare_percentage
        compared = few and (predicts or (outgoing.writes_text and is_compared(route, request_id, percentage)))
        self._passing += 1
        mirrored = MirroredRequest(
            outgoing,
            request_id,
            response.endpoint,
            mirror,
            epoch,
            response.streams_events,
            compared,
            response.headers,
        )
        if not mirrored.streamed:
            # A response that did not fit into the first read is too long to keep.
            mirrored.compared = compared and response.rest is None
            mirrored.add_part(response.start)
        return mirrored

    def passed(self) -> None:
        """The response of a request that has a copy has ended, well or not."""
        self._passing -= 1

    def offer(self, mirrored: MirroredRequest) -> None:
        """The client has its response: the copy runs, waits for its turn, or is dropped, and is counted once."""
        if dropped := self._dropped(mirrored):
            self._metrics.mirrored(mirrored.endpoint.model, mirrored.mirror.revision, dropped)
            return
        self._account.force(mirrored.size_bytes)
        self._waiting.append(mirrored)
        self._start()

    def _dropped(self, mirrored: MirroredRequest) -> str:
        settings = self._settings
        if self._closed:
            return CANCELLED
        if self._busy():
            return BUSY
        too_large = len(mirrored.outgoing.body) > settings.mirror_max_body_bytes
        if too_large or self._account.held_bytes + mirrored.size_bytes > settings.mirror_max_bytes:
            return TOO_LARGE
        full = len(self._running) >= settings.mirror_max_inflight and len(self._waiting) >= settings.mirror_max_queue
        return QUEUE_FULL if full else ""

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
        while self._waiting and len(self._running) < self._settings.mirror_max_inflight:
            mirrored = self._waiting.popleft()
            task = asyncio.create_task(self._run(mirrored))
            self._running.add(task)
            # A task that is cancelled before it began runs none of its code: so the end is counted here.
            task.add_done_callback(functools.partial(self._ended, mirrored))
        self._metrics.mirroring.set(len(self._running))

    def _ended(self, mirrored: MirroredRequest, task: asyncio.Task[str]) -> None:
        self._running.discard(task)
        self._end(mirrored, CANCELLED if task.cancelled() else task.result())
        self._start()

    def _end(self, mirrored: MirroredRequest, result: str) -> None:
        self._account.shrink(mirrored.size_bytes)
        self._metrics.mirrored(mirrored.endpoint.model, mirrored.mirror.revision, result)

    async def _run(self, mirrored: MirroredRequest) -> str:
        try:
            return await self._carry(mirrored)
        except Exception:
            log.exception("a mirrored request failed inside of the gateway", extra={"request_id": mirrored.request_id})
            return FAILED

    async def _carry(self, mirrored: MirroredRequest) -> str:
        if self._busy():
            return BUSY
        if not self._balancer.mirrors(mirrored.endpoint, mirrored.mirror):
            return WITHDRAWN
        urls = self._balancer.published.urls(mirrored.endpoint.route, mirrored.mirror.revision)
        canary = self._endpoints.choose(urls, mirrored.outgoing.key)
        if not canary:
            return BUSY if urls else NO_ENDPOINT
        shadow = make_shadow(
            ShadowRequest(mirrored.outgoing.path_qs, mirrored.outgoing.headers, mirrored.outgoing.body)
        )
        self._signer.sign(shadow.headers, mirrored.endpoint.route)
        if mirrored.compared and is_predict(shadow.path):
            return await self._compare_predictions(mirrored, shadow, canary)
        repeatable = make_repeatable(shadow, mirrored.request_id) if mirrored.compared else None
        if repeatable is None:
            return (await self._ask(canary, shadow, keep=False)).result
        return await self._compare(mirrored, repeatable, canary)

    async def _compare_predictions(self, mirrored: MirroredRequest, shadow: ShadowRequest, canary: str) -> str:
        """Compares canary's predictions with stable's, counts that and returns the result of the mirrored request.

        A canary that refuses the request for lack of room is not counted.
        """
        response, tolerance = await self._ask(canary, shadow, keep=True), mirrored.mirror.tolerance
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
        second = self._endpoints.choose(others, mirrored.outgoing.key)
        again = mirrored.endpoint.url if repeatable.repeat_stable else ""
        responses = await self._ask_all(repeatable.request, canary, second, again)
        texts = responses[again].texts if again else await mirrored.texts()
        result, revision = responses[canary].result, mirrored.mirror.revision
        if (
            texts is None
            or responses[canary].texts is None
            or (others and (not second or responses[second].texts is None))
        ):
            return result
        differs = [int(responses[url].texts != texts) for url in (canary, second) if url]
        mirrored.epoch.compared(revision, TEXT, differs[0], differs[1] if second else None)
        if second and (score := build_scoring_request(repeatable.request, texts)):
            self._signer.sign(score.headers, mirrored.endpoint.route)
            scored = await self._ask_all(score, canary, second)
            found = [count_flips(scored[url].body, texts) for url in (canary, second)]
            if found[0] is not None and found[1] is not None:
                mirrored.epoch.compared(revision, TOKENS, found[0], found[1])
        return COMPARED

    async def _ask_all(self, shadow: ShadowRequest, *urls: str) -> dict[str, ShadowResponse]:
        """The response of each URL that is not empty. All get the request at once, under the same conditions."""
        repeatable = [url for url in urls if url]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(url, shadow, keep=True)) for url in repeatable]
        return dict(zip(repeatable, (task.result() for task in tasks), strict=True))

    async def _ask(self, url: str, shadow: ShadowRequest, *, keep: bool) -> ShadowResponse:
        """Reads one server's response to its end and keeps it if `keep` is set. Failures are a result too."""
        try:
            with self._endpoints.asking(url):
                async with asyncio.timeout(self._settings.mirror_timeout_s):
                    return await self._read(url, shadow, keep=keep)
        except TimeoutError:
            return ShadowResponse(TIMEOUT)
        # Invalid HTTP raises one of these too.
        except (aiohttp.ClientError, OSError, ValueError):
            return ShadowResponse(FAILED)

    async def _read(self, url: str, shadow: ShadowRequest, *, keep: bool) -> ShadowResponse:
        posting = self._session.post(
            URL(url + shadow.path_qs, encoded=True),
            data=shadow.body,
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
                        self._account.force(transcript.size_bytes - counted)
                        counted = transcript.size_bytes
                body, texts = transcript.body, keep and not is_predict(shadow.path)
                return ShadowResponse(ANSWERED, transcript.texts() if texts else None, body, response.headers)
            finally:
                self._account.shrink(counted)
