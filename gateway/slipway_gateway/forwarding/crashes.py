"""What a gateway does when engines die: suspects are tried one at a time, and poison is refused and named."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator

from ..routing.router import Target
from ..telemetry.metrics import Metrics, Record
from ..upstream.exchange import Call
from ..wire import errors
from .poison import CRASHED, POISON, RESET, Suspect, Suspects
from .retry_state import Effort

log = logging.getLogger(__name__)
# How long a suspect waits for an endpoint where no other one is on trial, and how often it looks.
_TRIAL_WAIT_S, _TRIAL_PAUSE_S = 5.0, 0.02


class Crashes:
    """Of one gateway."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._suspects = Suspects(clock)

    def check(self, call: Call, record: Record, effort: Effort) -> None:
        """Looks at a new request: whether engines died of its very bytes before.

        Raises:
            Refusal: two did.
        """
        known = self._suspects.blamed(_suspect(call))
        if known >= POISON:
            raise self._refused(call, record)
        if known:
            effort.suspects(self._clock() + _TRIAL_WAIT_S)

    def note(
        self, call: Call, target: Target, record: Record, effort: Effort, *, on_trial: bool, said: bool = True
    ) -> None:
        """An engine died while it worked on a request. `on_trial`: before the first byte of its answer.

        `said`: by its server; else the connection was reset.

        Raises:
            Refusal: enough of them did.
        """
        self._metrics.crashes.labels(target.model, target.revision).inc()
        weight, tried = CRASHED if said else RESET, effort.suspect and on_trial
        blamed = self._suspects.blame(_suspect(call), target.url, weight, sent_s=effort.sent_s, on_trial=tried)
        effort.suspects(self._clock() + _TRIAL_WAIT_S)
        if blamed >= POISON:
            raise self._refused(call, record)

    def avoided(self, effort: Effort) -> Collection[str]:
        """Endpoints that a request does not go to now, for a suspect is on trial there."""
        waits = effort.suspect and self._clock() < effort.trial_until
        return self._suspects.busy() if waits else ()

    async def waits(self, effort: Effort) -> bool:
        """Waits a moment for a trial to end; False when there is none to wait for."""
        if not self.avoided(effort):
            return False
        await asyncio.sleep(_TRIAL_PAUSE_S)
        return True

    @contextlib.contextmanager
    def trial(self, url: str, effort: Effort) -> Iterator[None]:
        """From sending a suspect to the first byte of its answer."""
        if not effort.suspect:
            yield
            return
        self._suspects.begin(url)
        try:
            yield
        finally:
            self._suspects.end(url)

    def _refused(self, call: Call, record: Record) -> errors.Refusal:
        self._metrics.poison.labels(call.model, record.revision).inc()
        fields = {"request_id": record.request_id, "model": call.model, "revision": record.revision}
        digest = _suspect(call).digest.hex()
        log.warning("engines died of a request: it is refused", extra=fields | {"digest": digest})
        return errors.crashed_engine()


def _suspect(call: Call) -> Suspect:
    return Suspect(call.client, call.path_qs, call.body)
