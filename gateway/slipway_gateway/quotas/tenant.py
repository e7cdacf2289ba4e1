"""All limits of one tenant: a request takes from every bucket or from none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import msgspec

from .gcra import MINUTE_S, Bucket, Hold, Rate

REQUESTS, INPUT, OUTPUT, CONCURRENCY, SPEND, LONG_CONTEXT = LIMITS = (
    "requests",
    "input_tokens",
    "output_tokens",
    "concurrency",
    "spend",
    "long_context",
)
TOKENS = (INPUT, OUTPUT)
_REQUEST_HEADERS, _TOKEN_HEADERS = (
    (f"x-ratelimit-limit-{what}", f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}")
    for what in ("requests", "tokens")
)
# A request that waits for another one of its tenant to end cannot know when that is.
_CONCURRENCY_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """One gateway's share of each limit: one of `parts` equal parts. A remainder goes to the lowest ranks."""

    parts: int = 1
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant; 0: no limit. `burst_s`: a full bucket holds the units of this many seconds, at least one.

    `parts`: number of gateways that divide the limits per minute among them; see `part`.
    """

    requests_per_minute: int = 0
    input_tokens_per_minute: int = 0
    output_tokens_per_minute: int = 0
    concurrency: int = 0
    burst_s: float = MINUTE_S
    parts: int = 1

    def part(self, share: Share) -> "Limits":
        """The limits of one gateway. All parts sum to the limits, except that each part lets one request run."""
        if share.parts <= 1:
            return self
        each, more = divmod(self.concurrency, share.parts)
        concurrency = max(1, each + (share.rank < more)) if self.concurrency else 0
        return replace(self, concurrency=concurrency, parts=share.parts)

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return bool(self.concurrency or self.rates())

    def rates(self) -> Mapping[str, Rate]:
        return _rates(self)


@lru_cache(maxsize=4096)  # called for each request
def _rates(limits: Limits) -> Mapping[str, Rate]:
    per_minute = {
        REQUESTS: limits.requests_per_minute,
        INPUT: limits.input_tokens_per_minute,
        OUTPUT: limits.output_tokens_per_minute,
    }
    bursts = {name: max(1, int(value * limits.burst_s / MINUTE_S / limits.parts)) for name, value in per_minute.items()}
    found = {name: Rate(value, bursts[name], limits.parts) for name, value in per_minute.items() if value}
    return MappingProxyType(found)


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A request is refused. `limit`: one of `LIMITS`. `wait_s`: seconds after which it would be admitted."""

    limit: str
    wait_s: float


class Reservation(msgspec.Struct):
    """What one request took from each bucket, until `TenantQuota.settle` ends it."""

    holds: dict[str, Hold] = msgspec.field(default_factory=dict)
    ended: bool = False


class TenantQuota:
    """The buckets of one tenant in one process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._buckets = {name: Bucket(rate) for name, rate in limits.rates().items()}
        self.running = 0
        self._arriving = 0  # requests whose body is awaited; they are not running yet

    def arrive(self, most: int) -> LimitReached | None:
        """The body of a request is awaited until `arrived`; or `most` are already."""
        if self._arriving >= most:
            return LimitReached(CONCURRENCY, _CONCURRENCY_WAIT_S)
        self._arriving += 1
        return None

    def arrived(self) -> None:
        """The body of a request is here, or its client is gone."""
        self._arriving -= 1

    def reserve(self, amounts: Mapping[str, int], now_s: float) -> Reservation | LimitReached:
        """Admits a request: takes `amounts`, by the name of the limit, from all buckets, or from none.

        A refusal changes nothing: a client that retries too often does not wait longer for that.
        """
        if self.limits.concurrency and self.running >= self.limits.concurrency:
            return LimitReached(CONCURRENCY, _CONCURRENCY_WAIT_S)
        longest, longest_s = "", 0.0
        for name, bucket in self._buckets.items():
            if bucket.tat_s > now_s and (wait_s := bucket.wait_s(amounts.get(name, 0), now_s)) > longest_s:
                longest, longest_s = name, wait_s
        if longest:
            return LimitReached(longest, longest_s)
        self.running += 1
        return Reservation({name: bucket.take(amounts.get(name, 0), now_s) for name, bucket in self._buckets.items()})

    def settle(self, reservation: Reservation, used: Mapping[str, int], now_s: float) -> None:
        """Ends a reservation and charges `used`, by limit; a limit that is not in it is charged what was reserved.

        The second call does nothing.
        """
        if reservation.ended:
            return
        reservation.ended = True
        self.running -= 1
        for name, hold in reservation.holds.items():
            if name in used and name in self._buckets:
                self._buckets[name].settle(hold, used[name], now_s)

    def change(self, limits: Limits, now_s: float) -> None:
        """Other limits from now on: what was used stays used."""
        self.limits = limits
        rates = limits.rates()
        for name in self._buckets.keys() - rates.keys():
            del self._buckets[name]
        for name, rate in rates.items():
            if name not in self._buckets:
                self._buckets[name] = Bucket(rate)
            elif self._buckets[name].rate != rate:
                self._buckets[name].change(rate, now_s)

    def is_idle(self, now_s: float) -> bool:
        """Whether the quota is like a new one: no request runs or arrives, and all buckets are full."""
        return not (self.running or self._arriving) and all(self.owed(name, now_s) <= 0 for name in self._buckets)

    def owed(self, name: str, now_s: float) -> float:
        """Units of a limit that have not flowed back yet; 0 without such a limit."""
        bucket = self._buckets.get(name)
        return bucket.full_in_s(now_s) / bucket.rate.interval_s if bucket else 0.0

    def enter(self) -> None:
        """A request begins that takes from no bucket of this process; `leave` ends it."""
        self.running += 1

    def leave(self) -> None:
        self.running -= 1

    def headers(self, now_s: float) -> dict[str, str]:
        """The `x-ratelimit-*` headers for what remains in the buckets of this process."""
        return headers(
            {
                name: (bucket.rate, bucket.tat_s - now_s if bucket.tat_s > now_s else 0.0)
                for name, bucket in self._buckets.items()
            }
        )


def headers(buckets: Mapping[str, tuple[Rate, float]]) -> dict[str, str]:
    """`x-ratelimit-*` headers as OpenAI's clients know them. Of input and output tokens they show the scarcer limit.

    `buckets`: by the name of the limit its rate, and the seconds until its bucket is full.
    """
    shown: dict[str, str] = {}
    scarcest = math.inf
    for name, (rate, full_in_s) in buckets.items():
        limit, remaining = rate.limit, int(rate.burst - full_in_s / rate.interval_s + 1e-6)
        if remaining < 0:
            remaining = 0  # more is owed than a bucket
        if name == REQUESTS:
            of_limit, of_rest, of_reset = _REQUEST_HEADERS
        elif name in TOKENS and remaining / limit < scarcest:
            scarcest = remaining / limit
            of_limit, of_rest, of_reset = _TOKEN_HEADERS
        else:
            continue
        shown[of_limit] = rate.limit_text
        shown[of_rest] = str(remaining) if remaining < limit else rate.limit_text
        shown[of_reset] = duration(full_in_s)
    return shown


def duration(seconds: float) -> str:
    """A duration in the format of OpenAI's headers: `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    thousandths = round(seconds * 1000)
    if thousandths < 1000:
        return f"{thousandths}ms"
    minutes, rest = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
