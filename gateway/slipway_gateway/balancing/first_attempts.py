"""Records the outcome of every first attempt: as a metric, and as a sample for the judge."""

import math
from collections.abc import Callable, Mapping
from functools import partial

from ..judging.outcome import ITL, AnswerOrigin, OutcomeRecorder, RequestOutcome
from ..judging.samples import CountedAttempt, GenerationSamples, Samples
from ..routing.router import RouteEndpoint, assign_revision
from ..routing.table import Route
from ..telemetry.metrics import GatewayMetrics
from ..wire.predictions import Value
from ..wire.request_fields import person_of
from .accuracy import Accuracy
from .failsafe_state import FailsafeState
from .published_table import PublishedTable

# Times `hung_after_s`, for a response that is no stream: its server is silent while it generates. The server of a
# stream is silent only before the first event, and when something is wrong.
WHOLE_PATIENCE = 5


class FirstAttempts:
    """First attempts of one gateway.

    `hung_after_s`: after this silence of a stream's server the outcome is a failure; 0: never.
    """

    def __init__(
        self,
        published: PublishedTable,
        failsafe: FailsafeState,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        accuracy: Accuracy | None = None,
        *,
        hung_after_s: float,
        max_sessions: int,
    ) -> None:
        self._published = published
        self._failsafe = failsafe
        self._metrics = metrics
        self._clock = clock
        self._accuracy = accuracy or Accuracy()
        self._hung_after_s = hung_after_s or math.inf
        self.samples = Samples(max_sessions)

    def record(
        self,
        endpoint: RouteEndpoint,
        key: str,
        stratum: str,
        now_s: float,
        *,
        is_sample: bool,
        stream: bool = False,
        client: str = "",
        excused: frozenset[str] = frozenset(),
    ) -> OutcomeRecorder:
        """A first attempt begins: the recorder follows it and counts its outcome.

        `is_sample` False: a header or a pin chose the revision, or no model computes the response. No request is a
        sample while the failsafe changes the weights. If the assigned revision has no endpoint and another one serves
        the request, its session counts as assigned, and the outcome counts for neither revision. `stream`: the client
        requested a stream. `excused`: kinds of failure that the request itself provokes, which do not count.
        """
        table = self._published.current
        route = table.routes.get(endpoint.route) if table else None
        own = self._assigned(route, key) if is_sample else ""
        generation = self.samples.epoch(route, now_s) if route and own else None
        counts = bool(generation and generation.assign(own, key, client, now_s))
        here = generation if own == endpoint.revision else None
        attempt = here.begin(endpoint.revision, key, stratum, stream=stream, counts=counts) if here else None

        def count(outcome: RequestOutcome) -> None:
            self._metrics.first_attempt(endpoint.model, endpoint.revision, outcome.bad, outcome.seconds.get(ITL))
            if here and attempt:
                here.count(attempt, outcome.without(excused))

        def mark(kind: str) -> None:
            self._metrics.first_attempt(endpoint.model, endpoint.revision, (kind,), None)
            if here and attempt:
                here.mark(attempt, kind)

        def close(waited: Mapping[str, float]) -> None:
            if here:
                here.close(recorder, waited)

        patience_s = self._hung_after_s * (1 if stream else WHOLE_PATIENCE)
        on_end = close if here and here.keeps_open else None
        recorder = OutcomeRecorder(now_s, count, on_end, streams=stream, patience_s=patience_s)
        recorder.on_mark = mark
        if route and here and attempt:
            self._follow(recorder, route, here, attempt, client)
        if route and (route.rates_labels or route.inference_log):
            assigned = own if here and counts else ""
            origin = AnswerOrigin(
                route.name, route.generation, route.digest, assigned, compared=route.rates_labels, client=client
            )
            recorder.origin = origin
        return recorder

    def _follow(
        self,
        recorder: OutcomeRecorder,
        route: Route,
        generation: GenerationSamples,
        attempt: CountedAttempt,
        client: str,
    ) -> None:
        """What an attempt counts beside its outcome: that it is open, its fallback, its prediction."""
        if generation.keeps_open:
            generation.open(attempt, recorder)
        recorder.on_fallback = partial(generation.fell_back, attempt)
        if route.reads_predictions:
            recorder.on_prediction = self._prediction_counter(route, generation, attempt, client)

    def _prediction_counter(
        self, route: Route, generation: GenerationSamples, attempt: CountedAttempt, client: str
    ) -> Callable[[Value | None], None]:
        """Counts the prediction of an attempt: for an analysis, for spec.accuracy, or for both."""
        bins = self.samples.bins(route) if route.predictions else None
        is_watched = route.accuracy is not None and attempt.counts

        def count(prediction: Value | None) -> None:
            if bins is not None:
                generation.predict(attempt, prediction, bins)
            if is_watched:
                person = person_of(attempt.key)
                self._accuracy.predicted(route, attempt.revision, client, person, prediction)

        return count

    def hit(self, route_name: str, key: str, client: str) -> None:
        """A request got a response from a cache. Its session counts as assigned, because a revision whose cache is
        empty would otherwise seem to get more than its weight; its outcome counts for no revision."""
        table, now_s = self._published.current, self._clock()
        route = table.routes.get(route_name) if table else None
        own = self._assigned(route, key)
        if route and own and (generation := self.samples.epoch(route, now_s)):
            generation.assign(own, key, client, now_s)

    def _assigned(self, route: Route | None, key: str) -> str:
        """The revision of a key by the published weights; empty where others are in force."""
        table = self._published.current
        if table is None or route is None or not self._failsafe.uses_published_weights(table, route):
            return ""
        return assign_revision(route, key)

    def generation(self, route: Route) -> GenerationSamples | None:
        """Samples of the route's present generation; None where `Samples.epoch` has none."""
        return self.samples.epoch(route, self._clock())
