"""Engine crashes: suspect requests are tried one at a time, and poison requests are refused and logged."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator

from ..routing.router import RouteEndpoint
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest
from ..wire import errors
from .poison import CRASHED, POISON, RESET, Suspect, Suspects
from .retry_state import RetryState

log = logging.getLogger(__name__)
# How long a suspect waits for an endpoint where no other suspect is on trial, and the pause between two looks.
_TRIAL_WAIT_S, _TRIAL_PAUSE_S = 5.0, 0.02


class CrashTracker:
    """Crashes that one gateway saw."""

    def __init__(self, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._suspects = Suspects(clock)

    def check(self, outgoing: UpstreamRequest, record: RequestRecord, state: RetryState) -> None:
        """Makes a request a suspect if an engine died while it worked on the same bytes.

        Raises:
            RequestError: engines died of them so often that the request is poison.
        """
        if not self._suspects:
            return
        known = self._suspects.blamed(_suspect(outgoing))
        if known >= POISON:
            raise self._refused(outgoing, record)
        if known:
            state.suspects(self._clock() + _TRIAL_WAIT_S)

    def note(
        self,
        outgoing: UpstreamRequest,
        endpoint: RouteEndpoint,
        record: RequestRecord,
        state: RetryState,
        *,
        on_trial: bool,
        reported: bool = True,
    ) -> None:
        """An engine died while it worked on a request. `on_trial`: before the first byte of its response.

        `reported`: by its server; else the connection was reset. Resets by one endpoint count once for a request: the
        second one may be of a server that is not back yet, or of something else at that address.

        Raises:
            RequestError: engines died of the request so often that it is poison.
        """
        if not reported:
            if endpoint.url in state.resets:
                return
            state.resets.add(endpoint.url)
        self._metrics.crashes.labels(endpoint.model, endpoint.revision).inc()
        weight, tried = CRASHED if reported else RESET, state.suspect and on_trial
        blamed = self._suspects.blame(_suspect(outgoing), endpoint.url, weight, sent_s=state.sent_s, on_trial=tried)
        state.suspects(self._clock() + _TRIAL_WAIT_S)
        if blamed >= POISON:
            raise self._refused(outgoing, record)

    def is_suspect(self, outgoing: UpstreamRequest) -> bool:
        """Whether an engine died with the same bytes in flight."""
        return self._suspects.blamed(_suspect(outgoing)) > 0

    def completed(self, outgoing: UpstreamRequest) -> None:
        """A response has been sent to its end: its bytes are less likely the cause of a crash."""
        if self._suspects:
            self._suspects.completed(_suspect(outgoing))

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

    def _refused(self, outgoing: UpstreamRequest, record: RequestRecord) -> errors.RequestError:
        self._metrics.poison.labels(outgoing.model, record.revision).inc()
        fields = {"request_id": record.request_id, "model": outgoing.model, "revision": record.revision}
        digest = _suspect(outgoing).digest.hex()
        log.warning("engines died of a request: it is refused", extra=fields | {"digest": digest})
        return errors.crashed_engine()


def _suspect(outgoing: UpstreamRequest) -> Suspect:
    return Suspect(outgoing.client, outgoing.path_qs, outgoing.body)
