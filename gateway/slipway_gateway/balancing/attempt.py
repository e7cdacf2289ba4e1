"""One attempt at one endpoint, from its start to its end, and the counts that it is part of."""

from dataclasses import dataclass
from typing import Protocol

from ..judging.outcome import OutcomeRecorder
from ..routing.router import RouteEndpoint
from .failsafe import AttemptResult


@dataclass(slots=True)
class RequestCounts:
    """Counts of one revision since the process started; `requests` and `failures` are first attempts only."""

    inflight: int = 0
    requests: int = 0
    failures: int = 0


class AttemptObserver(Protocol):
    """Gets the events of attempts; `LoadBalancer` is one."""

    def now(self) -> float: ...

    def attempt_began(self, endpoint: RouteEndpoint, client: str) -> AttemptResult | None: ...

    def attempt_failed(self, endpoint: RouteEndpoint, one: AttemptResult | None, client: str) -> None: ...

    def attempt_over(self, endpoint: RouteEndpoint, counts: RequestCounts, tenant: str) -> None: ...


class PrefillCount(Protocol):
    """A prompt that an endpoint computes; `Prefill` and the data plane's are ones."""

    def end(self) -> None: ...


class Attempt:
    """One attempt at one endpoint: counted as in flight from creation to `release`."""

    def __init__(
        self,
        observer: AttemptObserver,
        endpoint: RouteEndpoint,
        counts: RequestCounts,
        *,
        first: bool,
        recorder: OutcomeRecorder | None = None,
        client: str = "",
        tenant: str = "",
        prefill: PrefillCount | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._tenant = tenant
        self.client = client
        self._prefill = prefill  # None where prompts have no part in the choice of endpoints
        self.recorder = recorder  # only of a first attempt
        self._observer = observer
        self._counts = counts
        self._first = first
        self._held = True
        self._failed = False
        self._result: AttemptResult | None = None

    def began(self) -> None:
        """The response began; it may still break off."""
        if self._prefill is not None:
            self._prefill.end()
        if not self._failed:
            self._result = self._observer.attempt_began(self.endpoint, self.client)

    def failed(self, body: bytes = b"") -> None:
        """The attempt failed, before or after `began`. `body`: of a response with an error status."""
        # Retries hide a bad revision from clients; they must not hide it from the judge.
        if self.recorder:
            self.recorder.fail(self._observer.now(), body)
        if not self._failed:
            self._failed = True
            self._counts.failures += self._first
            self._observer.attempt_failed(self.endpoint, self._result, self.client)

    def release(self) -> None:
        if self._held:
            self._held = False
            if self._prefill is not None:
                self._prefill.end()
            self._observer.attempt_over(self.endpoint, self._counts, self._tenant)
