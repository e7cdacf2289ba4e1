"""When a connection has lasted too long: idle, silent, old, or within a head that does not end (pure)."""

from dataclasses import dataclass
from enum import Enum, auto

# A client that sent nothing for so long, with streams open, gets a ping; it has the second time to respond.
PING_AFTER_S, PING_TIMEOUT_S = 60.0, 20.0
# How long a client has to confirm that it begins no more streams, and to read the last frames.
RETIRED_S, CLOSED_S = 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """`max_streams`: of one connection. `max_age_s`: after it a connection takes no more streams."""

    max_header_bytes: int
    header_timeout_s: float
    idle_timeout_s: float
    max_age_s: float
    max_streams: int = 1024


class Due(Enum):
    NOTHING = auto()
    PING = auto()
    RETIRE = auto()  # the client learns that it should begin no more streams
    STOP_TAKING = auto()  # it begins none from now on
    CLOSE_SLOW = auto()
    CLOSE_IDLE = auto()
    ABORT = auto()  # without a last word: no one reads it


class Lifetime:
    """The times of one connection, in seconds of one clock. `age_share`: of the greatest age, so that ages differ."""

    def __init__(self, limits: Http2Limits, now_s: float, age_share: float = 1.0) -> None:
        self._limits = limits
        self._began_s = self.received_s = self.idle_since_s = now_s
        self._old_s = now_s + limits.max_age_s * age_share
        self._pinged_s: float | None = None
        self._retires_s: float | None = None
        self._closes_s: float | None = None
        self.head_since_s: float | None = now_s  # a head, or the preface and the first settings, are awaited since

    @property
    def retires(self) -> bool:
        return self._retires_s is not None

    def retire(self, now_s: float) -> None:
        self._retires_s = now_s + RETIRED_S

    def close(self, now_s: float) -> None:
        self._closes_s = now_s + CLOSED_S

    def due(self, now_s: float, *, has_streams: bool, takes_streams: bool) -> Due:
        """What must be done now. It is taken as done: the next call says what is due after it."""
        limits = self._limits
        if self._closes_s is not None:
            return Due.ABORT if now_s >= self._closes_s else Due.NOTHING
        if self.head_since_s is not None and now_s - self.head_since_s > limits.header_timeout_s:
            return Due.CLOSE_SLOW
        if not has_streams and now_s - self.idle_since_s > limits.idle_timeout_s:
            return Due.CLOSE_IDLE
        if self._retires_s is not None:
            if takes_streams and now_s >= self._retires_s:
                return Due.STOP_TAKING
        elif now_s > self._old_s:
            return Due.RETIRE
        return self._ping(now_s, has_streams=has_streams)

    def _ping(self, now_s: float, *, has_streams: bool) -> Due:
        if self._pinged_s is not None and self.received_s >= self._pinged_s:
            self._pinged_s = None
        if self._pinged_s is not None:
            return Due.ABORT if now_s - self._pinged_s > PING_TIMEOUT_S else Due.NOTHING
        if has_streams and now_s - self.received_s > PING_AFTER_S:
            self._pinged_s = now_s
            return Due.PING
        return Due.NOTHING
