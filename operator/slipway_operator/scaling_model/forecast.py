"""A seasonal forecast of demand by Holt and Winters, with the error of its past forecasts; pure.

Demand is cut into buckets. The level and the trend are those of exponential smoothing, and the season is additive: one
number for each bucket of it (Hyndman and Athanasopoulos, Forecasting: Principles and Practice, 8.3). Every bucket is
forecast before it is learned, both by the season and by the last value, so the backtest never ends: a forecast counts
only while it is better than the last value.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

BUCKET_S = 600.0
MOST_BUCKETS = 1_008  # of a season: a week
_LEVEL, _TREND, _SEASON = 0.3, 0.02, 0.35
_DAMPED = 0.9  # of the trend, with each bucket ahead
_ERRORS = 0.97  # of the errors so far, with each bucket: those of the last five hours count
_HEAD = 8  # numbers of a forecast before its season


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known of demand in work per second. `errors`: of the season and of the last value, faded sums."""

    season_s: float
    level: float = 0.0
    trend: float = 0.0
    season: tuple[float, ...] = ()
    bucket: int = -1  # the last bucket that was learned, counted from the epoch
    learned: int = 0  # buckets
    errors: tuple[float, float] = (0.0, 0.0)
    last: float = 0.0  # value of that bucket
    pending: tuple[float, int] = field(default=(0.0, 0))  # sum and number of the values of the present bucket

    @property
    def length(self) -> int:
        """Buckets of a season, from 1 to MOST_BUCKETS."""
        return min(MOST_BUCKETS, max(1, round(self.season_s / BUCKET_S)))

    def add(self, at_s: float, demand: float) -> "Forecast":
        """A value of demand at a time, in seconds since the epoch. Earlier values than the last bucket do not count."""
        bucket = int(at_s // BUCKET_S)
        total, number = self.pending
        if number and bucket > self.bucket + 1:
            return self._learn(total / number, bucket - 1).add(at_s, demand)
        if self.bucket < 0:
            return replace(self, bucket=bucket - 1, pending=(demand, 1))
        if bucket <= self.bucket:
            return self
        if bucket > self.bucket + 1:  # a gap: nothing is known of it
            return replace(self, bucket=bucket - 1, pending=(demand, 1))
        return replace(self, pending=(total + demand, number + 1))

    def at(self, at_s: float) -> float | None:
        """Demand at a later time; None before a whole season, and while the last value was the better forecast."""
        if self.learned < self.length or not self.is_better:
            return None
        place = at_s / BUCKET_S - 0.5  # a bucket's value is that of its middle
        first = int(place // 1)
        part = place - first
        return (1 - part) * self._of(first) + part * self._of(first + 1)

    def peak(self, from_s: float, to_s: float) -> float | None:
        """The highest demand from one time to another; None as in `at`."""
        steps = max(1, round((to_s - from_s) / (BUCKET_S / 4)))
        values = [self.at(from_s + (to_s - from_s) * step / steps) for step in range(steps + 1)]
        known = [value for value in values if value is not None]
        return max(known, default=None)

    @property
    def is_better(self) -> bool:
        """Whether forecasts by the season were better than the last value, lately."""
        seasonal, naive = self.errors
        return seasonal < naive

    @property
    def skill(self) -> float | None:
        """1 less the ratio of both errors: 1 is perfect, 0 is as good as the last value; None before a season."""
        seasonal, naive = self.errors
        return 1.0 - seasonal / naive if naive > 0 and self.learned > self.length else None

    def _of(self, bucket: int) -> float:
        ahead = max(1, bucket - self.bucket)
        damped = self.trend * _DAMPED * (1 - _DAMPED**ahead) / (1 - _DAMPED)
        return max(0.0, self.level + damped + self._seasonal(bucket))

    def _seasonal(self, bucket: int) -> float:
        return self.season[bucket % self.length] if self.season else 0.0

    def _learn(self, value: float, upto: int) -> "Forecast":
        """Learn the bucket that ended; `upto` is the last one before the present, others between are unknown."""
        bucket = self.bucket + 1
        season = self.season or (0.0,) * self.length
        place = bucket % self.length
        if self.learned < self.length:  # the first season: its values themselves, around their mean
            level = (self.level * self.learned + value) / (self.learned + 1)
            shift = self.level - level if self.learned else 0.0
            moved = tuple(part + shift for part in season)
            season = (*moved[:place], value - level, *moved[place + 1 :])
            return replace(
                self,
                level=level,
                season=season,
                bucket=upto,
                learned=self.learned + 1,
                last=value,
                pending=(0.0, 0),
            )
        errors = self._errors_with(value, bucket)
        level = _LEVEL * (value - season[place]) + (1 - _LEVEL) * (self.level + self.trend)
        trend = _TREND * (level - self.level) + (1 - _TREND) * self.trend * _DAMPED
        part = _SEASON * (value - level) + (1 - _SEASON) * season[place]
        season = (*season[:place], part, *season[place + 1 :])
        return replace(
            self,
            level=level,
            trend=trend,
            season=season,
            bucket=upto,
            learned=min(self.learned + 1, 10**6),
            errors=errors,
            last=value,
            pending=(0.0, 0),
        )

    def _errors_with(self, value: float, bucket: int) -> tuple[float, float]:
        """Both errors with those of this bucket."""
        seasonal, naive = abs(value - self._of(bucket)), abs(value - self.last)
        return _ERRORS * self.errors[0] + seasonal, _ERRORS * self.errors[1] + naive

    def numbers(self) -> Iterator[float]:
        """For a status."""
        yield from (
            self.season_s,
            self.level,
            self.trend,
            float(self.bucket),
            float(self.learned),
            *self.errors,
            self.last,
        )
        yield from self.season

    @classmethod
    def of(cls, numbers: Sequence[float], season_s: float) -> "Forecast":
        """From the numbers of a status; an empty forecast for another season, or where they are not those of one."""
        empty = cls(season_s)
        if len(numbers) < _HEAD or numbers[0] != season_s or any(abs(number) > 1e15 for number in numbers):
            return empty
        _, level, trend, bucket, learned, seasonal, naive, last = numbers[:_HEAD]
        season = tuple(numbers[_HEAD:])
        if len(season) not in (0, empty.length):
            return empty
        return replace(
            empty,
            level=level,
            trend=trend,
            season=season,
            bucket=int(bucket),
            learned=max(0, int(learned)) if season else 0,
            errors=(max(0.0, seasonal), max(0.0, naive)),
            last=last,
        )


@dataclass(frozen=True, slots=True)
class Backtest:
    """Mean absolute errors of forecasts one bucket ahead, in work per second, over a history after its first season."""

    seasonal: float
    last_value: float
    buckets: int


def backtest(values: Sequence[float], season_s: float) -> Backtest:
    """Forecast each bucket of a history before it is learned. Raises ValueError for a history within one season."""
    forecast, errors, naive = Forecast(season_s), [], []
    for number, value in enumerate(values):
        if forecast.learned >= forecast.length and number:
            errors.append(abs(value - forecast._of(number)))
            naive.append(abs(value - values[number - 1]))
        forecast = forecast.add(number * BUCKET_S, value).add((number + 1) * BUCKET_S, value)
    if not errors:
        raise ValueError(f"the history has {len(values)} buckets: a season of {season_s:g} s needs more")
    return Backtest(sum(errors) / len(errors), sum(naive) / len(naive), len(errors))
