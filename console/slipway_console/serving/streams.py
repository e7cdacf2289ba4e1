"""Server-sent events: an open page stays up to date by polling, with the token of its viewer.

Polling and not a watch: a watch needs a right of its own, holds a connection to the API server for each page, and would
still have to read Events and AnalysisRuns. A page costs one small read in `poll_s`, and the others when the object has
changed, at the latest after `EVERY_LOOK_S`. A list is one read in `LIST_POLL_S`.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web

from slipway_console.access.refusal import ApiRefusal, SignedOut
from slipway_console.serving.guard import HEADERS, SESSION
from slipway_console.serving.pages import EVERY_LOOK_S
from slipway_console.serving.sessions import MOST_STREAMS_OF_A_SESSION, Session, SessionStore
from slipway_process.shares import Shares

log = logging.getLogger(__name__)

LIST_POLL_S = 5.0  # of a page that has no cheaper read, at least
Sections = Callable[[web.Request], Awaitable[Mapping[str, str]]]
Version = Callable[[web.Request], Awaitable[str]]


class Streams:
    """Open streams, of all sessions together and of each."""

    def __init__(self, sessions: SessionStore, most: int, poll_s: float) -> None:
        self._sessions, self._shares, self._poll_s = sessions, Shares(most), poll_s
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all streams: the process stops."""
        self._closing.set()

    def handler(
        self, sections: Sections, version: Version | None = None
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The answer to the path of one kind of page. `version`: a cheaper read, which shows whether there is news."""

        async def answer(request: web.Request) -> web.StreamResponse:
            session = request[SESSION]
            user = session.viewer.user
            if session.streams >= MOST_STREAMS_OF_A_SESSION or not self._shares.take(user):
                return web.Response(status=429, text="Too many pages are open: this one is not kept up to date.")
            session.streams += 1
            try:
                return await self._run(request, session, sections, version)
            finally:
                session.streams -= 1
                self._shares.give_back(user)

        return answer

    async def _run(
        self, request: web.Request, session: Session, sections: Sections, version: Version | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        page = _Page(request, sections, version)
        while (left_s := self._sessions.left_s(session)) > 0 and not self._closing.is_set():
            try:
                event = await page.look()
            except SignedOut:
                self._sessions.end(session)
                break
            except ApiRefusal as refusal:
                event = _event("trouble", refusal.sentence)
            await response.write(event)
            await self._pause(min(self._poll_s if version else max(self._poll_s, LIST_POLL_S), left_s))
        if not self._closing.is_set():
            await response.write(_event("ended", "The session has ended: sign in again."))
        return response

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return


class _Page:
    """What one stream has sent."""

    def __init__(self, request: web.Request, sections: Sections, version: Version | None) -> None:
        self._request, self._sections, self._version = request, sections, version
        self._seen, self._looked_s = "", 0.0
        self._sent: dict[str, bytes] = {}

    async def look(self) -> bytes:
        """The next event: parts that have changed, or a sign of life. Raises ApiRefusal."""
        now_s = asyncio.get_running_loop().time()
        if self._version is not None:
            seen = await self._version(self._request)
            if seen == self._seen and now_s - self._looked_s < EVERY_LOOK_S:
                return _event("alive", "")
            self._seen = seen
        self._looked_s = now_s
        found = await self._sections(self._request)
        digests = {name: hashlib.sha256(html.encode()).digest() for name, html in found.items()}
        changed = {name: html for name, html in found.items() if self._sent.get(name) != digests[name]}
        self._sent = digests
        return _event("sections", changed) if changed else _event("alive", "")


def _event(kind: str, data: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
