"""One attempt at one endpoint, from its start to its end, and the counts that it is part of."""

from dataclasses import dataclass
from typing import Protocol

from ..judging.outcome import Fate
from ..routing.router import Target
from .failsafe import Try


@dataclass(slots=True)
class Tally:
    """Counts of one revision since the process started; `requests` and `failures` are first attempts only."""

    inflight: int = 0
    requests: int = 0
    failures: int = 0


class Owner(Protocol):
    """Who lends: hears how an attempt goes."""

    def now(self) -> float: ...

    def began(self, target: Target, client: str) -> Try | None: ...

    def failed(self, target: Target, one: Try | None, client: str) -> None: ...

    def give_back(self, target: Target, tally: Tally) -> None: ...


class Lease:
    """One attempt at one endpoint: counted as in flight from creation to `release`."""

    def __init__(
        self,
        owner: Owner,
        target: Target,
        tally: Tally,
        *,
        first: bool,
        fate: Fate | None = None,
        client: str = "",
    ) -> None:
        self.target = target
        self.client = client
        self.fate = fate  # of a first attempt alone
        self._owner = owner
        self._tally = tally
        self._first = first
        self._held = True
        self._failed = False
        self._try: Try | None = None

    def began(self) -> None:
        """The endpoint answers; whether it also ends the answer is yet to be seen."""
        if not self._failed:
            self._try = self._owner.began(self.target, self.client)

    def failed(self, body: bytes = b"") -> None:
        """`body`: of an answer whose status says so."""
        # Retries hide a bad revision from clients; they must not hide it from the operator's judgement.
        if self.fate:
            self.fate.failed(self._owner.now(), body)
        if not self._failed:
            self._failed = True
            self._tally.failures += self._first
            self._owner.failed(self.target, self._try, self.client)

    def release(self) -> None:
        if self._held:
            self._held = False
            self._owner.give_back(self.target, self._tally)
