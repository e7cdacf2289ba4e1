"""A request that waits for a deployment to wake: a stream gets comments meanwhile, and an event on failure."""

import math

from aiohttp import web

from ..balancing.activity import RouteActivity
from ..routing.table import Route
from ..telemetry.metrics import RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import errors, headers
from ..wire.sse import CONTENT_TYPE, error_event

_HEADERS = {"Content-Type": f"{CONTENT_TYPE}; charset=utf-8", "Cache-Control": "no-cache"}


class HeldRequest:
    """One request. `out`: the response to its client once a first comment was sent, whose status can only be 200."""

    def __init__(
        self,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        activity: RouteActivity,
        *,
        began_s: float,
        every_s: float,
    ) -> None:
        """`began_s`: when the request came, on the clock of `now_s` below. `every_s`: between comments; 0: none."""
        self._request, self._call, self._record = request, outgoing, record
        self.activity, self.began_s = activity, began_s
        self._every_s = every_s if outgoing.stream and outgoing.writes_text and every_s > 0 else math.inf
        self._next_s = began_s + self._every_s
        self.out: web.StreamResponse | None = None
        self.left = False  # whether the client is gone, which sending a comment showed

    def until_next_s(self, route: Route | None, now_s: float) -> float:
        """Seconds until the next comment; infinite where the route is awake, or the request gets no comments."""
        return max(0.0, self._next_s - now_s) if route and route.wake_s is not None else math.inf

    async def send_comment(self, route: Route | None, now_s: float) -> None:
        """Sends the comment that is due, if one is. The first one begins the response; `left` is set if that fails."""
        if route is None or self.until_next_s(route, now_s) > 0:
            return
        self._next_s = now_s + self._every_s
        about = f" of about {route.wake_s} s" if route.wake_s else ""
        try:
            if self.out is None:
                limits = self._call.meter.limit_headers if self._call.meter else {}
                sent = {**_HEADERS, headers.REQUEST_ID: self._record.request_id, **limits}
                self.out = web.StreamResponse(headers=sent)
                await self.out.prepare(self._request)
            comment = f": waking, {now_s - self.began_s:.0f} s{about}\n".encode()  # one line: see `sse.KEEP_ALIVE`
            await self.out.write(comment)
            self._record.sent_bytes += len(comment)
        except ConnectionError:
            self.left = True

    async def refuse(self, refusal: errors.RequestError) -> web.StreamResponse:
        """Ends a stream that has begun with comments, by an error event.

        Raises:
            RequestError: `refusal` itself, where nothing was sent yet.
        """
        if self.out is None:
            raise refusal from None
        event = error_event(self._call.path, refusal.code, str(refusal))
        return await self._end(self.out, refusal.outcome, refusal.code, event)

    async def refuse_response(self, response: UpstreamResponse) -> web.StreamResponse | None:
        """Closes a server's response that cannot go on a stream which has begun with comments: sends an error event.

        None: nothing was sent yet, or the response is a stream of events with status 200; it can be relayed.
        """
        if self.out is None or (response.status == 200 and response.streams_events):
            return None
        response.close()
        self._record.revision = response.endpoint.revision
        code, message = errors.code_and_message(response.start)
        status, outcome = (response.status, response.outcome) if response.status >= 400 else (502, "upstream_error")
        event = error_event(self._call.path, code or str(status), message or "The server sent no stream.", status)
        return await self._end(self.out, outcome, "", event)

    async def _end(self, out: web.StreamResponse, outcome: str, reason: str, event: bytes) -> web.StreamResponse:
        self._record.end(outcome, 200, reason)
        try:
            await out.write(event)
            self._record.sent_bytes += len(event)
            await out.write_eof()
        except ConnectionError:
            self._record.end("client_closed", 499)
        return out
