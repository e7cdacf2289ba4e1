"""One rate limit: GCRA with reservations that are settled later."""

from dataclasses import dataclass, field

import msgspec

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_minute` units flow back each minute; at most `burst` units can be taken at once.

    `parts`: number of buckets that divide `per_minute` among them; `burst` is of this bucket alone. `interval_s`:
    seconds until one unit has flowed back. `limit`: what this bucket gets back in a minute, also as a text.
    """

    per_minute: int
    burst: int
    parts: int = 1
    interval_s: float = field(init=False)
    limit: int = field(init=False)
    limit_text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval_s", MINUTE_S * self.parts / self.per_minute)
        object.__setattr__(self, "limit", self.per_minute // self.parts or 1)
        object.__setattr__(self, "limit_text", str(self.limit))


class Hold(msgspec.Struct):
    """A part of a bucket that one request took. `settle` replaces it by what the request used."""

    amount: int
    end_s: float
    refunded_s: float  # sum of the bucket's refunds before the hold was taken
    changes: int  # number of changes of the bucket's rate before the hold was taken
    settled: bool = False


class Bucket:
    """A bucket is full at first. `tat_s` is GCRA's theoretical arrival time: until then the bucket is not full.

    It never owes more than what fills it once: no report of a server locks its tenant out for longer.
    """

    __slots__ = ("_changes", "_interval_s", "_refunded_s", "rate", "tat_s")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._interval_s = rate.interval_s
        self.tat_s = float("-inf")
        self._refunded_s = 0.0
        self._changes = 0

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until `amount` can be taken, 0: now. More than a full bucket waits for a full one."""
        if self.tat_s <= now_s:
            return 0.0  # it is full
        free_in_s = self.tat_s - now_s
        if amount < self.rate.burst:
            free_in_s += (amount - self.rate.burst) * self._interval_s
        # Rounding must refuse no request: a billionth of a unit is none.
        return free_in_s if free_in_s > self._interval_s * 1e-9 else 0.0

    def take(self, amount: int, now_s: float) -> Hold:
        """Takes `amount`, at most a full bucket, without a check that it is there: callers check `wait_s` first."""
        if amount > self.rate.burst:
            amount = self.rate.burst
        self.tat_s = (self.tat_s if self.tat_s > now_s else now_s) + amount * self._interval_s
        return Hold(amount, self.tat_s, self._refunded_s, self._changes)

    def settle(self, hold: Hold, used: int, now_s: float) -> None:
        """Charges what was used beyond the hold, or gives back what was not used. The second call does nothing.

        What the time since then has already given back is not given back again: the bucket never has more than it
        would have if the use had been known from the start.
        """
        if hold.settled:
            return
        hold.settled = True
        if used >= hold.amount:
            more = min(used - hold.amount, 2 * self.rate.burst)  # floats are exact for so much
            self.tat_s = (self.tat_s if self.tat_s > now_s else now_s) + more * self._interval_s
            self._forgive(now_s)
            return
        if hold.changes != self._changes:
            return  # the hold's seconds are those of another rate: the unused part flows back with time
        # Of the hold and everything before it, so much has not flowed back yet.
        left_s = hold.end_s - (self._refunded_s - hold.refunded_s) - now_s
        if left_s > 0.0:
            unused_s = (hold.amount - used) * self._interval_s
            refund_s = unused_s if unused_s < left_s else left_s
            self.tat_s -= refund_s
            self._refunded_s += refund_s

    def full_in_s(self, now_s: float) -> float:
        return max(0.0, self.tat_s - now_s)

    def change(self, rate: Rate, now_s: float) -> None:
        """Another limit from now on; what is owed stays owed, in units, up to a full bucket of the new limit."""
        owed = max(0.0, self.tat_s - now_s) / self._interval_s
        self.rate, self._interval_s = rate, rate.interval_s
        self.tat_s = now_s + owed * self._interval_s
        self._changes += 1
        self._forgive(now_s)

    def _forgive(self, now_s: float) -> None:
        """Drops what is owed beyond one full bucket. It counts as given back: no hold gives the same back again."""
        latest_s = now_s + 2 * self.rate.burst * self._interval_s
        if self.tat_s > latest_s:
            self._refunded_s += self.tat_s - latest_s
            self.tat_s = latest_s
