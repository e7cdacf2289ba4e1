"""Takes a response as the events of a stream, one at a time; any other response is collected."""

from collections.abc import Awaitable, Callable

from multidict import CIMultiDict

from ..forwarding.relay import UnusableResponse
from ..forwarding.stand_ins import ResponseCollector
from ..wire import sse
from .events import BadEvent, EventReader, TokenEvent
from .marks import EventMarks

Deliver = Callable[[TokenEvent], Awaitable[None]]


class EventWriter(ResponseCollector):
    """`deliver` gets each event; it raises ConnectionError where the client is gone.

    `streams`: the response is a stream with status 200. `finished`: its last event was delivered.
    """

    remembers = True

    def __init__(self, limit_bytes: int, deliver: Deliver, marks: EventMarks) -> None:
        """`limit_bytes`: of a response that is no stream. `marks`: takes the ids of what was delivered."""
        super().__init__(limit_bytes)
        self._deliver, self.marks = deliver, marks
        self._reader = EventReader()
        self.streams = self.finished = False

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        await super().write_headers(status_line, headers)
        self.streams = self.status == 200 and headers.get("Content-Type", "").startswith(sse.CONTENT_TYPE)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Raises UnusableResponse: the server sent what is no event, or a response that has no room."""
        if not self.streams:
            await super().write(chunk)
            return
        try:
            events = self._reader.feed(bytes(chunk))
        except BadEvent:
            raise UnusableResponse("invalid_response", of_server=True, status=502) from None
        for event in events:
            if self.finished:
                return  # nothing follows the last event
            await self._deliver(event)
            self.marks.add(event.event_id)
            self.finished = event.is_last
