"""What a client gets and sends: messages in JSON, and bounds of what arrives (pure)."""

from dataclasses import dataclass
from typing import Any

import msgspec

from ..token_streams.events import Failure, TokenEvent

_encode = msgspec.json.Encoder().encode


def event_message(id_: str, event: TokenEvent) -> bytes:
    """A message for an event of a stream."""
    about: dict[str, Any] = {"type": "token" if event.usage is None else "done", "id": id_}
    if event.event_id:
        about |= {"position": event.position, "event_id": event.event_id}
    if event.usage is None:
        return _encode(about | {"token": event.token})
    return _encode(about | {"usage": event.usage, "finish_reason": event.finish_reason})


def error_message(id_: str, failure: Failure) -> bytes:
    """The last message of a request, or one for a message that is none; `id` is null where none could be read."""
    about: dict[str, Any] = {"type": "error", "id": id_ or None}
    if failure.status:
        about["status"] = failure.status
    if failure.retry_after_ms is not None:
        about["retry_after_ms"] = failure.retry_after_ms
    return _encode(about | {"error": failure.error})


@dataclass(slots=True)
class MessageRate:
    """A token bucket of messages. `per_s`: refilled in a second, and at most in it. `at_s`: of the last message."""

    per_s: float
    at_s: float
    left: float

    @classmethod
    def full(cls, per_s: float, now_s: float) -> "MessageRate":
        return cls(per_s, now_s, per_s)

    def takes(self, now_s: float) -> bool:
        """Whether a message that comes now is within the rate; then it is counted."""
        self.left = min(self.per_s, self.left + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        if self.left < 1:
            return False
        self.left -= 1
        return True
