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

from slipway_console.access.places import Places
from slipway_console.access.refusal import ApiRefusal, SignedOut
from slipway_console.serving.guard import HEADERS, SESSION
from slipway_console.serving.pages import EVERY_LOOK_S
from slipway_console.serving.sessions import MOST_STREAMS_OF_A_SESSION, Session, SessionStore
from slipway_process.shares import Shares

log = logging.getLogger(__name__)

WRITE_S = 30.0  # in which a browser takes an event: one that does not read would hold its place for ever
LIST_POLL_S = 5.0  # of a page that has no cheaper read, at least
Sections = Callable[[web.Request], Awaitable[Mapping[str, str]]]
Version = Callable[[web.Request], Awaitable[str]]


class Streams:
    """Open streams, of all sessions together and of each."""

    def __init__(self, sessions: SessionStore, most: int, poll_s: float, pages: Places) -> None:
        self._sessions, self._shares, self._poll_s, self._pages = sessions, Shares(most), poll_s, pages
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
            share = session.viewer.share
            if session.streams >= MOST_STREAMS_OF_A_SESSION or not self._shares.take(share):
                return web.Response(status=429, text="Too many pages are open: this one is not kept up to date.")
            session.streams += 1
            try:
                return await self._run(request, session, sections, version)
            finally:
                session.streams -= 1
                self._shares.give_back(share)

        return answer

    async def _run(
        self, request: web.Request, session: Session, sections: Sections, version: Version | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        page, ending = _Page(request, sections, version), "The session has ended: sign in again."
        while (left_s := self._sessions.left_s(session)) > 0 and not self._closing.is_set():
            try:
                async with self._pages.of(session.viewer.share):
                    event = await page.look()
            except SignedOut:
                self._sessions.end(session)
                break
            except ApiRefusal as refusal:
                event = _event("trouble", refusal.sentence)
            except web.HTTPException:
                ending = "This page does not exist."
                break
            except Exception:  # the response has begun: a page about it cannot follow
                log.exception("a stream failed inside of the console")
                ending = "The console failed on this page; its log has the reason. Reload the page to try again."
                break
            await _send(request, response, event)
            await self._pause(min(self._poll_s if version else max(self._poll_s, LIST_POLL_S), left_s))
        if not self._closing.is_set():
            await _send(request, response, _event("ended", ending))
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


async def _send(request: web.Request, response: web.StreamResponse, event: bytes) -> None:
    """Sends an event. Raises ConnectionError: the browser is gone, or does not read, and its connection is cut."""
    try:
        async with asyncio.timeout(WRITE_S):
            await response.write(event)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the browser does not read the stream") from None


def _event(kind: str, data: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
