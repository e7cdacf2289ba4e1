"""Attempts of one request so far, and how many remain."""

from dataclasses import dataclass

import msgspec

from slipway_process.backoff import Backoff

from ..judging.outcome import OutcomeRecorder
from ..upstream.exchange import UpstreamResponse

PAUSES = Backoff(0.05, 1.0)  # between attempts at endpoints that all failed
NO_ADAPTER = "no_adapter"  # the pod has no such adapter, and did nothing with the request
BAD_RESPONSE = "bad_response"  # reason of a failure: the server sent something that is no HTTP response


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt may be repeated elsewhere. `response` is what to relay when nothing better comes.

    `sent`: whether the endpoint may have got the request; it did not when the connection failed.
    """

    reason: str
    sent: bool = True
    response: UpstreamResponse | None = None
    crashed: bool = False  # the engine died with the request in flight

    @property
    def busy(self) -> bool:
        return self.reason == "429"


class RetryState(msgspec.Struct):
    """Attempts of one request so far; `spent`: those of them that count toward `limit`.

    `hold_until`: until when it may wait for an endpoint, on the clock. `tried`: URLs to avoid until the next pause.
    """

    hold_until: float
    limit: int
    pauses: int = 0  # since its endpoints were last new to it
    attempts: int = 0
    spent: int = 0
    sent_s: float = 0.0  # when the last attempt began
    tried: set[str] = msgspec.field(default_factory=set)
    last: AttemptFailure | None = None
    resumes: bool = False
    held_for: tuple[str, ...] = ()  # whose place it has among the requests that wait; empty: it has none
    wakes: bool = False  # it waited for a deployment to wake
    recorder: OutcomeRecorder | None = None
    suspect: bool = False  # an engine died with it in flight
    deaths: int = 0  # of engines with it in flight, since its stream last got PASSED_EVENTS from one endpoint
    trial_until: float = 0.0  # it waits for an endpoint of its own until then
    is_retrying: bool = False  # a retry of it is in the route's budget
    fails_fast: bool = False  # it waits for no endpoint: another deployment can answer it

    def suspects(self, trial_until: float, hold_until: float) -> None:
        """From now on the request goes to endpoints that have a spare, and that no other suspect has if one is free in
        time."""
        self.suspect, self.trial_until = True, trial_until
        self.hold_until = max(self.hold_until, hold_until)

    def again(self, broken_url: str, hold_until: float) -> None:
        self.spent += 1
        self.hold_until, self.pauses, self.last = hold_until, 0, None
        self.tried = {broken_url}

    def note(self, url: str, fault: AttemptFailure) -> None:
        self.attempts += 1
        self.tried.add(url)
        self.last = fault
        # What a server had begun with loses only time by a refusal, which does not count; a server that died counts.
        # Nor does a refusal count during a wake: endpoints may still be those of pods that left when the deployment
        # fell asleep.
        refused = fault.response is not None and not fault.crashed
        self.spent += fault.sent and not ((self.was_taken or self.wakes) and refused)

    @property
    def pause_s(self) -> float:
        """The next pause before all endpoints are tried again."""
        return PAUSES.delay_s(self.pauses + 1)

    @property
    def waits_in_vain(self) -> bool:
        """Whether the request fails at once: all servers are busy, or another deployment can answer it.

        One that a server had taken before waits.
        """
        return (self.fails_fast or (self.last is not None and self.last.busy)) and not self.was_taken

    @property
    def was_taken(self) -> bool:
        """Whether a server had begun with it."""
        return self.resumes or self.suspect
