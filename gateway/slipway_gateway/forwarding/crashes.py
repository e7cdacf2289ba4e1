"""Engines that died: suspect requests are tried one at a time where a spare is left, poison requests are refused."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from ..balancing.load_balancer import LoadBalancer
from ..routing.router import RouteEndpoint
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest
from ..wire import errors
from .poison import DEATH, POISON, Suspect, Suspects
from .retry_state import RetryState

if TYPE_CHECKING:
    from ..fast_lane.lane import FastLane

log = logging.getLogger(__name__)
# How long a suspect waits for an endpoint where no other suspect is on trial, and the pause between two looks.
_TRIAL_WAIT_S, _TRIAL_PAUSE_S = 5.0, 0.02
MAX_DEATHS = 2  # of engines with one request in flight


class CrashTracker:
    """Deaths of engines that one gateway saw. `patience_s`: how long a suspect waits for an endpoint with a spare."""

    def __init__(
        self, balancer: LoadBalancer, metrics: GatewayMetrics, patience_s: float, clock: Callable[[], float]
    ) -> None:
        self._balancer = balancer
        self._metrics = metrics
        self._patience_s = patience_s
        self._clock = clock
        self._suspects = Suspects(clock)
        self._copies = Suspects(clock)  # of requests: what a copy ends is no reason to refuse a client

    def join(self, lane: "FastLane") -> None:
        """The fast lane leaves requests to Python that an engine may have died of, and knows what it answered."""
        self._suspects.answered_in_lane, self._suspects.on_change = lane.answered, lane.blame

    def forget(self) -> None:
        """Forgets requests that are blamed for too long, also where no request comes that would do so."""
        self._suspects.forget()

    def check(self, outgoing: UpstreamRequest, record: RequestRecord, state: RetryState) -> None:
        """Makes a request a suspect if an engine died while it worked on the same bytes.

        Raises:
            RequestError: the request is poison.
        """
        if not self._suspects:
            return
        one = _suspect(outgoing)
        blamed = self._suspects.blamed(one)
        if blamed >= POISON:
            raise self._refused(one, outgoing, record)
        if blamed:
            self._suspect(one, state)

    def note(
        self,
        outgoing: UpstreamRequest,
        endpoint: RouteEndpoint,
        record: RequestRecord,
        state: RetryState,
        *,
        on_trial: bool,
        passed: bool = False,
        reported: bool = False,
    ) -> None:
        """An engine died while it worked on a request. `on_trial`: before the first byte of its response.

        `passed`: PASSED_EVENTS of its stream had come from there. Then its bytes are blamed only if the server itself
        reported the death (`reported`): a pod that is killed from outside looks the same. A stream whose bytes were
        answered before is blamed by a report alone too; `max_resumes` bounds it.

        Raises:
            RequestError: the request goes to no other endpoint: it is long, or was in flight at MAX_DEATHS deaths.
        """
        self._metrics.crashes.labels(endpoint.model, endpoint.revision).inc()
        self._balancer.spares.failed(endpoint.url)
        one = _suspect(outgoing)
        if state.resumes and not reported and self._suspects.answered(one):
            return
        at_once = one.is_long and not passed
        blamed = 0
        if reported or not passed:
            weight, tried = POISON if at_once else DEATH, state.suspect and on_trial
            blamed = self._suspects.blame(
                one, endpoint.url, weight, on_trial=tried, sent_s=state.sent_s, reported=reported
            )
        state.deaths = 1 if passed else state.deaths + 1
        self._suspect(one, state)
        if at_once and state.deaths == 1:
            _log("an engine died of a long request: it goes to no other one", one, outgoing, record)
            raise errors.engine_crashed(long=True)
        if state.deaths >= MAX_DEATHS or blamed >= POISON:
            raise self._refused(one, outgoing, record)

    def stays(self, endpoint: RouteEndpoint) -> bool:
        """Whether the pod of an endpoint is not being deleted: such a pod goes for other reasons."""
        return self._balancer.published.has_pod(endpoint.model, endpoint.revision, endpoint.url)

    def is_suspect(self, outgoing: UpstreamRequest) -> bool:
        """Whether an engine died with the same bytes in flight, so that no copy of them is made.

        Of a death with a copy in flight the bytes are no suspect where a client's request with them was answered.
        """
        if not (self._suspects or self._copies):
            return False
        one = _suspect(outgoing)
        return self._suspects.blamed(one) > 0 or (self._copies.blamed(one) > 0 and not self._suspects.answered(one))

    def copy_died(self, outgoing: UpstreamRequest, url: str) -> None:
        """An engine died while it worked on a copy of a request."""
        self._copies.blame(_suspect(outgoing), url, DEATH)

    def completed(self, outgoing: UpstreamRequest) -> None:
        """A response has been sent to its end: its bytes are less likely the cause of a death."""
        self._suspects.completed(_suspect(outgoing))

    def barred(self, outgoing: UpstreamRequest, state: RetryState) -> Collection[str]:
        """URLs of endpoints that a suspect must not be sent to now: those without a spare; else empty.

        An endpoint where a suspect is on trial is no one's spare.
        """
        return self._balancer.without_spare(outgoing.whose, self._suspects.busy()) if state.suspect else ()

    def avoided(self, state: RetryState) -> Collection[str]:
        """URLs of endpoints where another suspect is on trial, which a suspect avoids for a while; else empty."""
        return self._suspects.busy() if state.suspect and self._clock() < state.trial_until else ()

    async def wait_for_trial(self, state: RetryState) -> None:
        """Waits a moment for a trial to end, and extends the time that the request may wait for endpoints by it."""
        began_s = self._clock()
        await asyncio.sleep(_TRIAL_PAUSE_S)
        state.hold_until += self._clock() - began_s

    @contextlib.contextmanager
    def trial(self, url: str) -> Iterator[None]:
        """Marks an endpoint where a suspect is on trial: from sending the suspect to the first byte of its response."""
        self._suspects.begin(url)
        try:
            yield
        finally:
            self._suspects.end(url)

    def _suspect(self, one: Suspect, state: RetryState) -> None:
        if not self._suspects.answered(one):
            now_s = self._clock()
            state.suspects(now_s + _TRIAL_WAIT_S, now_s + self._patience_s)

    def _refused(self, one: Suspect, outgoing: UpstreamRequest, record: RequestRecord) -> errors.RequestError:
        self._metrics.poison.labels(outgoing.model, record.revision).inc()
        _log("engines died of a request: it is refused", one, outgoing, record)
        return errors.crashed_engine()


def _suspect(outgoing: UpstreamRequest) -> Suspect:
    return Suspect(outgoing.client, outgoing.path_qs, outgoing.body)


def _log(message: str, one: Suspect, outgoing: UpstreamRequest, record: RequestRecord) -> None:
    fields = {"request_id": record.request_id, "model": outgoing.model, "revision": record.revision}
    log.warning(message, extra=fields | {"digest": one.digest.hex()})
