"""Sessions of viewers, in memory: a token never leaves the process, and all are forgotten when it ends.

A cookie could have carried the token, encrypted. It does not, because a session in memory ends when its viewer signs
out, whoever has copied the cookie; because tokens of an OIDC issuer are longer than the 4 KiB of a cookie; and because
there is no key to keep and to rotate. The price is one replica, whose restart signs everybody out.
"""

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slipway_console.access.api_server import Viewer
from slipway_process.shares import Shares

MOST_OF_A_USER = 8
MOST_STREAMS_OF_A_SESSION = 4  # a browser has six connections to a host


@dataclass(slots=True, eq=False)
class Session:
    """One signed-in browser."""

    id: str = field(repr=False)
    viewer: Viewer = field(repr=False)
    csrf: str = field(repr=False)
    ends_s: float  # by the clock of the store
    news: str = ""  # one sentence for the next page: what the last action did
    streams: int = 0
    ended: bool = False


class SessionStore:
    """At most `most` sessions; a user's oldest one ends when there is no room for another one of the same user."""

    def __init__(self, most: int, lasts_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._shares, self._lasts_s, self._clock = Shares(most), lasts_s, clock
        self._by_id: dict[str, Session] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, viewer: Viewer, lasts_s: float | None = None) -> Session | None:
        """A new session; None when there is no room, and the user has none that could end for it.

        `lasts_s`: until its token expires, where that is known.
        """
        self._end_old()
        own = [session for session in self._by_id.values() if session.viewer.user == viewer.user]
        if own and (len(own) >= MOST_OF_A_USER or self._shares.room(viewer.share) <= 0):
            self._forget(own[0])  # its place is the new one's, whoever else is there
        elif not self._shares.take(viewer.share):
            return None
        ends_s = self._clock() + min(self._lasts_s, math.inf if lasts_s is None else lasts_s)
        session = Session(secrets.token_urlsafe(32), viewer, secrets.token_urlsafe(32), ends_s)
        self._by_id[session.id] = session
        return session

    def find(self, session_id: str) -> Session | None:
        """The session of a cookie; None when there is none, or when its time is over."""
        self._end_old()
        return self._by_id.get(session_id)

    def left_s(self, session: Session) -> float:
        """Seconds until the session ends by itself; 0 when it has ended."""
        return 0.0 if session.ended else max(0.0, session.ends_s - self._clock())

    def end(self, session: Session) -> None:
        """Forget the session and its token."""
        if self._forget(session):
            self._shares.give_back(session.viewer.share)

    def _forget(self, session: Session) -> bool:
        """Whether it was there. Its place stays taken."""
        session.ended = True
        return self._by_id.pop(session.id, None) is not None

    def _end_old(self) -> None:
        now_s = self._clock()
        for session in [session for session in self._by_id.values() if session.ends_s <= now_s]:
            self.end(session)
