"""What was tried for one request, and what is left to try."""

from dataclasses import dataclass, field

from ..judging.outcome import Fate
from ..upstream.exchange import Answer

FIRST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an attempt may be repeated elsewhere. `answer` is what to relay when nothing better comes."""

    reason: str
    sent: bool = True
    answer: Answer | None = None
    crashed: bool = False  # the engine died with the request in flight

    @property
    def busy(self) -> bool:
        return self.reason == "429"


@dataclass(slots=True)
class Effort:
    """What was tried for one request so far."""

    hold_until: float
    limit: int
    pause_s: float = FIRST_PAUSE_S
    attempts: int = 0
    spent: int = 0
    sent_s: float = 0.0  # when the last attempt began
    tried: set[str] = field(default_factory=set)
    last: Fault | None = None
    resumes: bool = False
    wakes: bool = False  # it waited for a deployment to wake
    fate: Fate | None = None
    suspect: bool = False  # an engine died with it in flight
    trial_until: float = 0.0  # it waits for an endpoint of its own until then

    def suspects(self, trial_until: float) -> None:
        """From here on it is tried where no other suspect is, for as long as that is to be had in time."""
        self.suspect, self.trial_until = True, trial_until

    def again(self, broken_url: str, hold_until: float) -> None:
        self.spent += 1
        self.hold_until, self.pause_s, self.last = hold_until, FIRST_PAUSE_S, None
        self.tried = {broken_url}

    def note(self, url: str, fault: Fault) -> None:
        self.attempts += 1
        self.tried.add(url)
        self.last = fault
        # A server that says no costs a stream nothing but time; one that it kills may not be followed by many. Nor does
        # it count against a wake: endpoints may still be those of pods that left when the deployment fell asleep.
        self.spent += fault.sent and not ((self.resumes or self.wakes) and fault.answer)

    @property
    def waits_in_vain(self) -> bool:
        """A new request is told at once that all servers are busy; one that is half answered waits."""
        return self.last is not None and self.last.busy and not self.resumes
