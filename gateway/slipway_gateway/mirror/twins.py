"""Twin shadows: copies of whole sessions go to a canary pod and to a stable pod at the same moment.

Clients never wait for a copy and see no response of one. Both legs of a pair are sent, or neither: whether they are
depends on the load of this gateway and of both pods, and on no response to that request.
"""

import asyncio
import functools
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from slipway_contracts.counters import PROBE_FAILED, Agreement
from slipway_contracts.twin_shadow import PredictionTolerance, TwinShadow

from ..balancing.load_balancer import LoadBalancer
from ..guards.checks import GuardChecks
from ..judging import pairs
from ..judging.agreement import compare
from ..judging.outcome import RequestOutcome
from ..judging.pairs import TwinTally
from ..limits.rate import RateLimit
from ..routing.mirroring import is_paired
from ..routing.table import Route, equivalent_revisions
from ..scorers.client import ScorerClient
from ..scorers.hosts import ScorerHosts
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..upstream.exchange import UpstreamRequest
from ..upstream.tenant_proof import TenantSigner
from ..wire.inference import infers
from ..wire.predictions import MAX_BYTES as MAX_PREDICTED_BYTES
from .guarded import PairGuards
from .leg import Leg, LegOutcome, LegSender, alike, copy_of, without_text
from .probes import Probes
from .quality import PairComparison
from .room import MirrorPlaces
from .scorer import CANCELLED as NOT_SCORED
from .scorer import PairScorer
from .shadow_request import ShadowRequest, make_pair_copy
from .transcript import ChoiceTexts

log = logging.getLogger(__name__)

# Results of requests of copied sessions, and of probes, beside `pairs.WITHHELD`; each request has exactly one.
PAIRED, UNCOUNTED, PROBED, CANCELLED, ABANDONED = "paired", "uncounted", "probed", "cancelled", "abandoned"
SIDE_EFFECTS, SUSPECT = "side_effects", "suspect"
# A request that canary failed is sent to stable up to `REPEATS` times, in this interval, while stable's pods are busy.
REPEATS, _REPEAT_AFTER_S = 3, 1.0
_MAX_RATES = 4096  # routes whose pairs per second are bounded
_LEG_BYTES = 24 << 10  # memory of one leg: what it keeps of a stream, and its buffers


@dataclass(frozen=True, slots=True)
class _Pair:
    """A request for both legs. `counts` is None for a further request of a session, which is no pair of its own.

    `probe`: it is no copy of a client's request. `own`: the outcome of stable's response to the client, which counts
    where there is no twin.
    """

    route: Route
    shadow: TwinShadow
    original: UpstreamRequest
    copy: ShadowRequest
    canary: str
    twin: str
    counts: TwinTally | None
    probe: bool = False
    own: RequestOutcome | None = None

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self.copy)

    @property
    def legs(self) -> tuple[Leg, Leg]:
        """Of canary and of its twin."""
        return Leg(self.canary, self.shadow.revision), Leg(self.twin, self.shadow.twin)


def _size_bytes(request: ShadowRequest | UpstreamRequest) -> int:
    """Memory of a pair: the body, and both legs with what they keep of a stream, or of a response with predictions."""
    kept_bytes = _LEG_BYTES + (MAX_PREDICTED_BYTES if infers(request.path) else 0)
    return len(request.body) + 2 * kept_bytes


class TwinShadows:
    """Pairs of all models of one gateway. `busy`: whether clients need the capacity of a route."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        legs: LegSender,
        busy: Callable[[str], bool],
        *,
        is_suspect: Callable[[UpstreamRequest], bool],
        signer: TenantSigner,
        checks: GuardChecks,
    ) -> None:
        """`is_suspect`: whether an engine died with the same bytes in flight."""
        self._guards = PairGuards(checks)
        self._settings = settings
        self._balancer = balancer
        self._metrics = metrics
        self._busy = busy
        self._legs = legs
        self._memory = legs.memory
        self._places = MirrorPlaces(settings.twin_max_inflight)
        self._endpoints = legs.endpoints
        self._is_suspect = is_suspect
        self._signer = signer
        self._clock = asyncio.get_running_loop().time
        self._rates: dict[str, RateLimit] = {}
        self._quality = PairComparison(legs, settings.mirror_compare_percentage, signer)
        client = ScorerClient(ScorerHosts.of(settings.scorer_hosts))
        self.scorer = PairScorer(client, settings.scorer_max_inflight, self._memory, busy)
        self._running: set[asyncio.Task[str]] = set()
        self._closed = False
        self._probes = Probes(balancer.published, self._clock, self._probe)

    async def run(self) -> None:
        """Sends probes when they are due, until it is cancelled."""
        await self._probes.run()

    def offer(self, original: UpstreamRequest, request_id: str, own: RequestOutcome | None = None) -> None:
        """Starts a pair for a client's request that has ended, well or not, and does not wait for it.

        `own`: the outcome of the request's first attempt. A resumed stream gives no pair: it is the rest of a request
        that was offered before.
        """
        route = self._balancer.published.find(original.whose)
        shadow = route.twin_shadow if route else None
        if route is None or shadow is None or self._closed or not self._settings.twin_max_inflight:
            return
        if route.asleep or original.revision or not original.computes or not is_paired(route, original.key):
            return
        generation = self._balancer.first_attempts.generation(route)
        if generation is None:
            return
        sessions, counts = (
            self._balancer.first_attempts.samples.paired(route, shadow),
            generation.twins(shadow.revision),
        )
        if shadow.reference and own is None:
            # The client left, so there is no outcome of stable with which canary's could be compared.
            self._metrics.paired(self._model(route), shadow.revision, ABANDONED)
            return
        counted = not sessions.has(original.key)
        made = self._make(route, shadow, original, request_id, counts if counted else None)
        if isinstance(made, str):
            self._withhold(route, shadow, counts if counted else None, made)
            return
        sessions.remember(original.key)
        if counted:
            self._probes.paired(route)
        self._start(replace(made, own=own.without(original.excused)) if own and shadow.reference else made)

    def _probe(self, route: Route, shadow: TwinShadow, probe: UpstreamRequest, request_id: str) -> bool:
        """Sends a probe that is due; returns whether it was sent. It is withheld for the same reasons as a copy."""
        generation = None if self._closed else self._balancer.first_attempts.generation(route)
        if generation is None:
            return False
        counts = generation.twins(shadow.revision)
        made = self._make(route, shadow, probe, request_id, counts)
        if isinstance(made, str):
            self._withhold(route, shadow, counts, made)
            return False
        self._start(replace(made, probe=True))
        return True

    def _withhold(self, route: Route, shadow: TwinShadow, counts: TwinTally | None, reason: str) -> None:
        if counts and reason in pairs.WITHHELD:
            counts.withhold(reason)
        self._metrics.paired(self._model(route), shadow.revision, reason)

    async def close(self) -> None:
        """Sends no more pairs and cancels those in flight."""
        self._closed = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.scorer.close()

    # -- whether a pair is sent

    def _make(
        self,
        route: Route,
        shadow: TwinShadow,
        original: UpstreamRequest,
        request_id: str,
        counts: TwinTally | None,
    ) -> _Pair | str:
        """A pair to send, or why there is none."""
        if reason := self._no_room(route, original):
            return reason
        canary, twin = self._endpoints_of(route, shadow, original.key)
        if not (canary and twin):
            return self._missing(route, shadow, canary)
        # A request that crashed engines must not reach two more.
        if self._is_suspect(original):
            return SUSPECT
        copy = make_pair_copy(copy_of(original), request_id)
        if copy is None:
            return SIDE_EFFECTS
        now_s = self._clock()
        if route.name not in self._rates and len(self._rates) >= _MAX_RATES:
            self._rates.clear()  # routes come and go; those that are there begin with a full second again
        rate = self._rates.setdefault(route.name, RateLimit(now_s, shadow.max_pairs_per_second))
        if not rate.take(now_s, shadow.max_pairs_per_second, spare=counts is None):
            return pairs.RATE
        return _Pair(route, shadow, original, copy, canary, twin, counts)

    def _no_room(self, route: Route, original: UpstreamRequest) -> str:
        if self._balancer.failsafe.is_active(route):
            return pairs.FAILSAFE
        if self._busy(route.name):
            return pairs.BUSY
        if not self._places.has_room(route.name):
            return pairs.FULL
        fits = len(original.body) <= self._settings.mirror_max_body_bytes
        fits = fits and self._memory.has_room(route.name, _size_bytes(original))
        return "" if fits else pairs.TOO_LARGE

    def _endpoints_of(self, route: Route, shadow: TwinShadow, key: str) -> tuple[str, str]:
        urls = self._balancer.published.urls(route.name, shadow.revision)
        if route.base:  # one pod has both revisions: nothing but these differs between the legs
            pod = self._endpoints.choose(sorted(set(urls).intersection(self._twins(route, shadow))), key)
            return pod, pod
        return self._endpoints.choose(urls, key), self._endpoints.choose(self._twins(route, shadow), key)

    def _twins(self, route: Route, shadow: TwinShadow) -> tuple[str, ...]:
        """URLs of baseline pods, which are as new as the canary's; without such pods, URLs of stable."""
        twin, same = equivalent_revisions(shadow.twin)
        return self._balancer.published.urls(route.name, same) or self._balancer.published.urls(route.name, twin)

    def _missing(self, route: Route, shadow: TwinShadow, canary: str) -> str:
        if route.base and not set(self._twins(route, shadow)).intersection(
            urls := self._balancer.published.urls(route.name, shadow.revision)
        ):
            return pairs.NO_TWIN if urls else pairs.NO_CANARY
        if not canary:
            exists = self._balancer.published.urls(route.name, shadow.revision)
            return pairs.CANARY_REFUSED if exists else pairs.NO_CANARY
        return pairs.TWIN_REFUSED if self._twins(route, shadow) else pairs.NO_TWIN

    def _model(self, route: Route) -> str:
        table = self._balancer.published.current
        return table.id_of(route) if table else route.model

    # -- one pair

    def _start(self, pair: _Pair) -> None:
        self._places.take(pair.route.name)
        self._memory.force(pair.route.name, pair.size_bytes)
        if pair.counts:
            pair.counts.begin()
        task = asyncio.create_task(self._run(pair))
        self._running.add(task)
        self._metrics.pairing.set(len(self._running))
        # A task that is cancelled before it began runs none of its code: so the end is counted here.
        task.add_done_callback(functools.partial(self._ended, pair))

    def _ended(self, pair: _Pair, task: asyncio.Task[str]) -> None:
        self._running.discard(task)
        self._metrics.pairing.set(len(self._running))
        self._places.leave(pair.route.name)
        self._memory.shrink(pair.route.name, pair.size_bytes)
        over = not task.cancelled() and task.exception() is None
        if not over and pair.counts:
            pair.counts.cancel()
        if error := None if task.cancelled() else task.exception():
            log.error("a pair failed inside of the gateway", exc_info=error)
        result = task.result() if over else CANCELLED
        self._metrics.paired(self._model(pair.route), pair.shadow.revision, result)

    async def _run(self, pair: _Pair) -> str:
        """Sends the pair, counts and compares its outcomes, and returns its result."""
        if pair.own is not None:
            return await self._run_on_failure(pair, pair.own)
        self._signer.sign(pair.copy.headers, pair.route.deployment)
        # Which leg is first is chance, and both are sent before either is answered.
        canary_first = bool(secrets.randbits(1))
        legs = pair.legs if canary_first else pair.legs[::-1]
        compared = pair.counts is not None and self._quality.keeps(pair.route, pair.shadow, pair.original)
        scored = pair.counts is not None and self.scorer.chooses(pair.route, pair.shadow, pair.original)
        guarded = pair.counts is not None and any(one.is_of_output for one in pair.original.guards)
        keep = compared or scored or guarded
        # As of mirrored requests, canary's response may be somewhat longer than stable's for the same rows.
        sizes = [MAX_PREDICTED_BYTES // (1 if first is canary_first else 2) for first in (True, False)]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    self._legs.send(
                        leg.url, pair.copy, pair.original, revision=leg.revision, keep=keep, predicted_bytes=size
                    )
                )
                for leg, size in zip(legs, sizes, strict=True)
            ]
        first, second = (task.result() for task in tasks)
        canary, twin = (first, second) if canary_first else (second, first)
        if pair.counts is None:
            return UNCOUNTED
        if pair.probe and not (canary.answered or twin.answered):
            pair.counts.drop()
            return PROBE_FAILED
        canary, twin = await self._guarded(pair, (canary, twin))
        pair.counts.end(pair.shadow, pair.original.stratum, *alike(canary, twin), probe=pair.probe)
        if pair.shadow.tolerance and infers(pair.copy.path):
            pair.counts.agreements.count(_agreement(canary, twin, pair.shadow.tolerance))
        try:
            if compared and twin.texts and not self._busy(pair.route.name):
                await self._compare(pair, pair.counts, (canary.texts, twin.texts))
            if scored and not (canary.outcome.bad or twin.outcome.bad):
                await self._score(pair, pair.counts, (canary.texts, twin.texts))
        except Exception:  # the pair has counted: it must not end as one that has not
            log.exception("responses of a pair could not be compared")
        return PROBED if pair.probe else PAIRED

    async def _guarded(self, pair: _Pair, legs: tuple[LegOutcome, LegOutcome]) -> tuple[LegOutcome, LegOutcome]:
        try:
            return await self._guards.looked_at(pair.original, pair.shadow, legs, self._model(pair.route))
        except Exception:  # the pair counts without it
            log.exception("guards could not look at the responses of a pair")
            return legs

    async def _compare(self, pair: _Pair, counts: TwinTally, texts: tuple[ChoiceTexts | None, ChoiceTexts]) -> None:
        try:
            await self._quality.compare(pair.route, pair.copy, pair.legs, texts, counts.quality)
        except asyncio.CancelledError:
            # The gateway ends. The pair has counted, so its task ends as one that was not cancelled.
            return

    async def _score(
        self, pair: _Pair, counts: TwinTally, texts: tuple[ChoiceTexts | None, ChoiceTexts | None]
    ) -> None:
        assert pair.shadow.scorer, "only its pairs are chosen"
        model, result = self._model(pair.route), NOT_SCORED
        try:
            result = await self.scorer.score(
                pair.route.name, model, pair.shadow.scorer, pair.copy, texts, counts.scores
            )
        except asyncio.CancelledError:
            # As in `_compare`: the pair has counted, so its task ends as one that was not cancelled.
            return
        finally:
            if result:
                self._metrics.scored(model, pair.shadow.revision, result)

    async def _run_on_failure(self, pair: _Pair, own: RequestOutcome) -> str:
        """Sends the copy to canary alone; a request that canary fails is repeated at stable. Returns the result."""
        canary = await self._legs.send(pair.canary, pair.copy, pair.original, revision=pair.shadow.revision)
        if pair.counts is None:
            return UNCOUNTED
        # What ended canary's engine may end stable's.
        repeats = canary.outcome.bad and not self._is_suspect(pair.original)
        again = await self._repeat(pair) if repeats else None
        tested, repeated = alike(canary, again) if again else (canary.outcome, None)
        pair.counts.end_on_failure(tested, without_text(canary, own), repeated)
        return PAIRED

    async def _repeat(self, pair: _Pair) -> LegOutcome | None:
        """Sends the same copy to a pod of stable; None where no pod had room, which is no outcome of stable."""
        url = pair.twin
        for _ in range(REPEATS):
            if url:
                leg = await self._legs.send(url, pair.copy, pair.original, revision=pair.shadow.twin)
                if not leg.busy:
                    return leg
            await asyncio.sleep(_REPEAT_AFTER_S)
            url = self._endpoints.choose(self._twins(pair.route, pair.shadow), pair.original.key)
        return None


def _agreement(canary: LegOutcome, twin: LegOutcome, tolerance: PredictionTolerance) -> Agreement:
    """Whether canary predicts what its twin does. A canary that refuses the copy fails it, whatever the reason."""
    found = compare(twin.predictions, canary.predictions, tolerance)
    return Agreement.FAILED if canary.outcome.bad and found is not Agreement.UNREAD else found
