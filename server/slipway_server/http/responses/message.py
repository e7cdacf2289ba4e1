"""An assistant's message, whole and in deltas: its content, reasoning and calls of tools."""

from collections.abc import Iterable
from typing import Any

from ...engine.request import FinishReason
from ...text.answers.answer import AnswerParser
from ...text.answers.events import AnswerEvent, ArgumentsDelta, CallStart, ContentDelta, ReasoningDelta


class MessageParser:
    """Makes the message of one choice: either `message` once, or `delta` for each token."""

    def __init__(self, answer: AnswerParser) -> None:
        self._answer, self._calls = answer, 0

    def message(self, text: str) -> dict[str, Any]:
        """The whole message. `content` is null where an answer has reasoning or calls and no content."""
        fields = _fields([*self._answer.push(text), *self._answer.finish()])
        calls = fields.get("tool_calls", [])
        self._calls = len(calls)
        for call in calls:
            del call["index"]
        content = fields.pop("content", None if fields else "")
        return {"role": "assistant", "content": content} | fields

    def delta(self, text: str, *, last: bool) -> dict[str, Any]:
        """What one token's text adds. A stream can be resumed after each token, so that this is one event."""
        events = self._answer.push(text)
        fields = _fields([*events, *self._answer.finish()] if last else events)
        self._calls += sum("id" in call for call in fields.get("tool_calls", ()))
        return fields or {"content": ""}

    def finish_reason(self, finish: FinishReason | None) -> str | None:
        return "tool_calls" if self._calls and finish is FinishReason.STOP else finish


def _fields(events: Iterable[AnswerEvent]) -> dict[str, Any]:
    """The fields of a message that events add. Pieces are joined at the end, so that the time is linear."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, tuple[dict[str, Any], list[str]]] = {}
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case CallStart(index, id, name):
                calls[index] = {"index": index, "id": id, "type": "function", "function": {"name": name}}, []
            case ArgumentsDelta(index, text):
                calls.setdefault(index, ({"index": index, "function": {}}, []))[1].append(text)
    fields: dict[str, Any] = {}
    if reasoning:
        # The names of DeepSeek's API and of vLLM's: clients read one of them.
        fields["reasoning_content"] = fields["reasoning"] = "".join(reasoning)
    if content:
        fields["content"] = "".join(content)
    if calls:
        for call, arguments in calls.values():
            call["function"]["arguments"] = "".join(arguments)
        fields["tool_calls"] = [call for call, _ in calls.values()]
    return fields
