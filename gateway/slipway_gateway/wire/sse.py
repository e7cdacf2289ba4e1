"""Server-sent events: only whole events are forwarded, and a broken stream ends with an error event."""

import msgspec

from .errors import ENGINE_CRASHED, error_object

CONTENT_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"  # the last event of OpenAI's streams
# Precedes an event that further events of the same token follow: no stream is resumed between them.
FOLLOWED = b": +\n"
_CRASHED = f": {ENGINE_CRASHED}".encode()
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# Beyond this an unfinished event is handed on as it is: memory is bounded, whatever an upstream sends.
_MAX_PARTIAL_BYTES = 256 << 10


class EventAligner:
    """Holds back an unfinished event, so that an error event never lands inside another one, and events of one token
    until all of them are there."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._partial and chunk.endswith(b"\n\n") and FOLLOWED not in chunk:
            return chunk
        data = self._partial + chunk
        cut = max((at + len(end) for end in _EVENT_ENDS if (at := data.rfind(end)) >= 0), default=0)
        cut = _before_followed(data, cut)
        if not cut and len(data) > _MAX_PARTIAL_BYTES:
            cut = len(data)
        self._partial = data[cut:]
        return data[:cut]

    @property
    def held_bytes(self) -> int:
        return len(self._partial)

    def reports_crash(self) -> bool:
        """Whether the unfinished event at the end reports that the engine died."""
        return self._partial.strip() == _CRASHED

    def drop(self) -> None:
        self._partial = b""

    def flush(self) -> bytes:
        rest, self._partial = self._partial, b""
        return rest


def _before_followed(data: bytes, cut: int) -> int:
    """The last position up to `cut` at which a token's last event ends; 0 where there is none."""
    while cut:
        last = data.rfind(b"\n\n", 0, max(0, cut - 2))
        begin = 0 if last < 0 else last + 2
        if not data.startswith(FOLLOWED, begin):
            break
        cut = begin
    return cut


def split_crash_comment(events: bytes) -> tuple[bytes, bool]:
    """Events without the comment at their end that reports an engine crash, and whether it was there."""
    if events.endswith(_CRASHED + b"\n\n") and (len(events) == len(_CRASHED) + 2 or events[-len(_CRASHED) - 3] == 10):
        return events[: -len(_CRASHED) - 2], True
    return events, False


def error_event(path: str, code: str, message: str, status: int = 502) -> bytes:
    """The end of a stream that broke; `/v1/generate` and `/v1/responses` have event shapes of their own, and no
    `[DONE]`."""
    error = error_object(status, code, message)
    if path == "/v1/responses":
        event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0, "error": error}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
    if path == "/v1/generate":
        return b"data: " + msgspec.json.encode({"type": "error", "error": error}) + b"\n\n"
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\ndata: [DONE]\n\n"
