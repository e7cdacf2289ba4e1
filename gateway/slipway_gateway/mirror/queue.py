"""The lane of mirrored requests: bounded in number, bytes and time, first to give way, and waited for by nobody."""

import asyncio
import functools
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from ..balancing.backends import Backends
from ..judging.samples import TEXT, TOKENS
from ..limits.budget import Account, unlimited
from ..routing.mirroring import is_compared
from ..routing.split import affinity
from ..routing.table import alike
from ..settings import Settings
from ..telemetry.metrics import Metrics
from ..upstream.exchange import Answer, Call
from ..upstream.tenant_proof import Prover
from ..wire.sse import CONTENT_TYPE
from .mirrored_request import Copy, read
from .scoring import flips, scoring
from .shadow_request import Ask, Pinned, pinned, shadow
from .transcript import Said, Transcript

log = logging.getLogger(__name__)

# What a mirrored request may come to; each one comes to exactly one of these.
COMPARED, ANSWERED, REFUSED, FAILED, TIMEOUT = "compared", "answered", "refused", "failed", "timeout"
BUSY, QUEUE_FULL, TOO_LARGE, NO_ENDPOINT = "busy", "queue_full", "too_large", "no_endpoint"
WITHDRAWN, CANCELLED = "withdrawn", "cancelled"

_BUSY_STATUSES = frozenset({429, 503})
_REST_S = 1.0  # in which a server that said it is busy is asked nothing
_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class Heard:
    """What one server answered: `result` is ANSWERED, or why there is nothing to compare."""

    result: str
    said: Said | None = None
    body: bytes = b""


class Lane:
    """Of one gateway, for all of its models. `busy`: whether clients need the gateway for themselves."""

    def __init__(
        self,
        settings: Settings,
        backends: Backends,
        metrics: Metrics,
        session: aiohttp.ClientSession,
        busy: Callable[[], bool],
        account: Account | None = None,
        prover: Prover | None = None,
    ) -> None:
        """`account`: where the bytes that are held are counted."""
        self._prover = prover or Prover("")
        self._settings = settings
        self._backends = backends
        self._metrics = metrics
        self._session = session
        self._busy = busy
        self._clock = asyncio.get_running_loop().time
        self._waiting: deque[Copy] = deque()
        self._running: set[asyncio.Task[str]] = set()
        self._account = account or unlimited()
        self._passing = 0
        self._asking: Counter[str] = Counter()
        self._rests_until_s: dict[str, float] = {}
        self._closed = False

    # -- what a client's request sees of it: nothing here waits

    def copy_of(self, call: Call, answer: Answer, request_id: str, headers: Mapping[str, str]) -> Copy | None:
        """Of a request that is mirrored when its client has the answer; None for most. `headers`: the client's."""
        if answer.status != 200 or call.revision or self._closed or not self._settings.mirror_max_inflight:
            return None
        found = self._backends.mirror(answer.target, request_id, headers)
        if found is None:
            return None
        route, mirror, epoch = found
        # So many answers are kept while they pass, and no more.
        few = self._passing < self._settings.mirror_max_queue
        compared = few and call.writes_text and is_compared(route, request_id, self._settings.mirror_compare_percentage)
        self._passing += 1
        copy = Copy(call, request_id, answer.target, mirror, epoch, answer.streams_events, compared)
        if not copy.streamed:
            # What is not at hand as a whole is too long to be kept.
            copy.compared = compared and answer.rest is None
            copy.saw(answer.start)
        return copy

    def passed(self) -> None:
        """The answer of a request with a copy is over, well or not."""
        self._passing -= 1

    def offer(self, copy: Copy) -> None:
        """The client has its answer: the copy runs, waits for its turn, or is dropped, and is counted once."""
        if dropped := self._dropped(copy):
            self._metrics.mirrored(copy.target.model, copy.mirror.revision, dropped)
            return
        self._account.force(copy.size_bytes)
        self._waiting.append(copy)
        self._start()

    def _dropped(self, copy: Copy) -> str:
        settings = self._settings
        if self._closed:
            return CANCELLED
        if self._busy():
            return BUSY
        too_large = len(copy.call.body) > settings.mirror_max_body_bytes
        if too_large or self._account.held_bytes + copy.size_bytes > settings.mirror_max_bytes:
            return TOO_LARGE
        full = len(self._running) >= settings.mirror_max_inflight and len(self._waiting) >= settings.mirror_max_queue
        return QUEUE_FULL if full else ""

    async def close(self) -> None:
        """Nothing is mirrored any more, and what is on its way is cut."""
        self._closed = True
        for task in self._running:
            task.cancel()
        while self._waiting:
            self._end(self._waiting.popleft(), CANCELLED)
        await asyncio.gather(*self._running, return_exceptions=True)

    # -- one copy

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._settings.mirror_max_inflight:
            copy = self._waiting.popleft()
            task = asyncio.create_task(self._run(copy))
            self._running.add(task)
            # A task that is cancelled before it began runs none of its code: so the end is counted here.
            task.add_done_callback(functools.partial(self._ended, copy))
        self._metrics.mirroring.set(len(self._running))

    def _ended(self, copy: Copy, task: asyncio.Task[str]) -> None:
        self._running.discard(task)
        self._end(copy, CANCELLED if task.cancelled() else task.result())
        self._start()

    def _end(self, copy: Copy, result: str) -> None:
        self._account.shrink(copy.size_bytes)
        self._metrics.mirrored(copy.target.model, copy.mirror.revision, result)

    async def _run(self, copy: Copy) -> str:
        try:
            return await self._carry(copy)
        except Exception:
            log.exception("a mirrored request failed inside of the gateway", extra={"request_id": copy.request_id})
            return FAILED

    async def _carry(self, copy: Copy) -> str:
        if self._busy():
            return BUSY
        if not self._backends.mirrors(copy.target, copy.mirror):
            return WITHDRAWN
        urls = self._backends.urls(copy.target.route, copy.mirror.revision)
        canary = self._endpoint(urls, copy)
        if not canary:
            return BUSY if urls else NO_ENDPOINT
        ask = shadow(Ask(copy.call.path_qs, copy.call.headers, copy.call.body))
        self._prover.sign(ask.headers, copy.target.route)
        asked = pinned(ask, copy.request_id) if copy.compared else None
        if asked is None:
            return (await self._ask(canary, ask, keep=False)).result
        return await self._compare(copy, asked, canary)

    async def _compare(self, copy: Copy, asked: Pinned, canary: str) -> str:
        """Canary's answer with stable's, and beside it what a second stable pod answers: the floor."""
        same = self._backends.urls(copy.target.route, *alike(copy.target.revision))
        others = [url for url in same if url != copy.target.url]
        second = self._endpoint(others, copy)
        again = copy.target.url if asked.anew else ""
        heard = await self._ask_all(asked.ask, canary, second, again)
        said = heard[again].said if again else await copy.said()
        result, revision = heard[canary].result, copy.mirror.revision
        if said is None or heard[canary].said is None or (others and (not second or heard[second].said is None)):
            return result
        differs = [int(heard[url].said != said) for url in (canary, second) if url]
        copy.epoch.compared(revision, TEXT, differs[0], differs[1] if second else None)
        if second and (score := scoring(asked.ask, said)):
            self._prover.sign(score.headers, copy.target.route)
            scored = await self._ask_all(score, canary, second)
            found = [flips(scored[url].body, said) for url in (canary, second)]
            if found[0] is not None and found[1] is not None:
                copy.epoch.compared(revision, TOKENS, found[0], found[1])
        return COMPARED

    def _endpoint(self, urls: tuple[str, ...] | list[str], copy: Copy) -> str:
        """The least loaded one that did not just say that it is busy; empty when there is none."""
        now_s = self._clock()
        awake = [url for url in urls if self._rests_until_s.get(url, 0.0) <= now_s]
        load, key = self._backends.load, copy.call.key
        return min(awake, key=lambda url: (self._asking[url] + load(url), affinity(url, key)), default="")

    async def _ask_all(self, ask: Ask, *urls: str) -> dict[str, Heard]:
        """At once, so that all of them meet the same moment."""
        asked = [url for url in urls if url]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(url, ask, keep=True)) for url in asked]
        return dict(zip(asked, (task.result() for task in tasks), strict=True))

    async def _ask(self, url: str, ask: Ask, *, keep: bool) -> Heard:
        """One server's answer, read to its end, and held no further than `keep` says. Its troubles are a result."""
        self._asking[url] += 1
        try:
            async with asyncio.timeout(self._settings.mirror_timeout_s):
                return await self._read(url, ask, keep=keep)
        except TimeoutError:
            return Heard(TIMEOUT)
        # What is no HTTP at all ends in one of these too.
        except (aiohttp.ClientError, OSError, ValueError):
            return Heard(FAILED)
        finally:
            self._asking[url] -= 1
            if not self._asking[url]:
                del self._asking[url]

    async def _read(self, url: str, ask: Ask, *, keep: bool) -> Heard:
        posting = self._session.post(
            URL(url + ask.path_qs, encoded=True),
            data=ask.body,
            headers=ask.headers,
            allow_redirects=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
        )
        async with posting as response:
            if response.status in _BUSY_STATUSES:
                self._rest(url)
                return Heard(REFUSED)
            if response.status != 200:
                return Heard(FAILED)
            transcript = Transcript(streamed=response.headers.get("Content-Type", "").startswith(CONTENT_TYPE))
            counted = 0
            try:
                while chunk := await response.content.readany():
                    if keep:
                        await read(transcript, chunk)
                        self._account.force(transcript.size_bytes - counted)
                        counted = transcript.size_bytes
                body = transcript.body
                return Heard(ANSWERED, transcript.said() if keep else None, body)
            finally:
                self._account.shrink(counted)

    def _rest(self, url: str) -> None:
        now_s = self._clock()
        self._rests_until_s = {name: until_s for name, until_s in self._rests_until_s.items() if until_s > now_s}
        self._rests_until_s[url] = now_s + _REST_S
