"""One response and the events of its stream, from the tokens of the answer, in order.

The events of a stream are the same on each server that goes on with it: ids come from its identity, and sequence
numbers count from its beginning.
"""

from typing import Any

import msgspec

from ...engine.request import FinishReason
from ...text.answers.answer import AnswerParser
from ...text.answers.events import AnswerEvent, ArgumentsDelta, CallStart, ContentDelta, ReasoningDelta
from ..responses.delta import Delta
from ..responses.resume import Identity
from .schema import ResponsesRequest, TextFormat

Event = dict[str, Any]
COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}  # of ids


class _OpenItem:
    """An output item that is being built. `path`: the fields by which each of its events names it."""

    def __init__(self, item: dict[str, Any], index: int) -> None:
        self.item, self.kind, self.texts = item, item["type"], list[str]()
        self.path = {"item_id": item["id"], "output_index": index}

    @property
    def text(self) -> str:
        return "".join(self.texts)


class ResponseBuilder:
    def __init__(
        self, body: ResponsesRequest, model: str, identity: Identity, answer: AnswerParser, prompt_tokens: int
    ) -> None:
        self._identity, self._answer, self._prompt_tokens = identity, answer, prompt_tokens
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None
        self._tokens = self._cached_tokens = self._reasoning_tokens = 0
        self._head = _head(body, model, identity)
        self._status, self._tail = IN_PROGRESS, dict[str, Any]()

    @property
    def response(self) -> dict[str, Any]:
        return self._head | {"status": self._status, "output": self._output} | self._tail

    def begin(self) -> list[Event]:
        return [self._of_response("response.created"), self._of_response("response.in_progress")]

    def add(self, delta: Delta) -> list[Event]:
        """The events of one token; those of the last token end the response."""
        self._tokens = delta.tokens
        self._cached_tokens += delta.cached_tokens
        events: list[Event] = []
        parsed = self._answer.push(delta.text)
        if delta.finish is not None:
            parsed += self._answer.finish()
        self._reasoning_tokens += any(isinstance(one, ReasoningDelta) for one in parsed)
        for one in parsed:
            events += self._of_answer(one)
        return events if delta.finish is None else [*events, *self._finish(delta.finish)]

    def failure(self, error: dict[str, Any]) -> list[Event]:
        """The last event of a failed stream. It has the error twice: in the event's own fields, and as other errors."""
        about = {name: error.get(name) for name in ("code", "message", "param")}
        return [self._event("error", **about, error=error)]

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence} | fields
        self._sequence += 1
        return event

    def _of_response(self, kind: str) -> Event:
        return self._event(kind, response=self.response | {"output": list(self._output)})

    def _of_answer(self, part: AnswerEvent) -> list[Event]:
        match part:
            case ContentDelta(text):
                return self._add_text("message", "response.output_text.delta", text)
            case ReasoningDelta(text):
                return self._add_text("reasoning", "response.reasoning_text.delta", text)
            case CallStart(_, call_id, name):
                call = {"call_id": call_id, "name": name, "arguments": ""}
                return [*self._closed(COMPLETED), *self._begun("function_call", call)]
            case ArgumentsDelta(_, text):
                assert self._open, "arguments follow the start of their call"
                self._open.texts.append(text)
                return [self._event("response.function_call_arguments.delta", **self._open.path, delta=text)]

    def _add_text(self, kind: str, event: str, text: str) -> list[Event]:
        if not text:
            return []
        item, events = self._opened(kind)
        item.texts.append(text)
        return [*events, self._text_event(item, event, delta=text)]

    def _opened(self, kind: str) -> tuple[_OpenItem, list[Event]]:
        """The open item of this kind, and the events that open it where another one, or none, is open."""
        if self._open and self._open.kind == kind:
            return self._open, []
        fields = {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        events = [*self._closed(COMPLETED), *self._begun(kind, fields)]
        assert self._open, "it has begun"
        return self._open, [*events, self._part_event(self._open, "response.content_part.added", "")]

    def _begun(self, kind: str, fields: dict[str, Any]) -> list[Event]:
        index = len(self._output)
        item = {"id": f"{_PREFIXES[kind]}_{self._identity.id}{index:02x}", "type": kind, "status": IN_PROGRESS} | fields
        self._output.append(item)
        self._open = _OpenItem(item, index)
        return [self._event("response.output_item.added", output_index=index, item=dict(item))]

    def _closed(self, status: str) -> list[Event]:
        """Close the open item with `status`; return its last events, none where no item is open."""
        done, self._open = self._open, None
        if done is None:
            return []
        text, item = done.text, done.item
        item["status"] = status
        if done.kind == "function_call":
            item["arguments"] = text
            fields = {"name": item["name"], "arguments": text}
            events = [self._event("response.function_call_arguments.done", **done.path, **fields)]
        else:
            item["content"] = [_part(done.kind, text)]
            kind = "response.output_text.done" if done.kind == "message" else "response.reasoning_text.done"
            events = [
                self._text_event(done, kind, text=text),
                self._part_event(done, "response.content_part.done", text),
            ]
        return [*events, self._event("response.output_item.done", output_index=done.path["output_index"], item=item)]

    def _text_event(self, item: _OpenItem, kind: str, **fields: Any) -> Event:
        if item.kind == "message":
            fields["logprobs"] = []
        return self._event(kind, **item.path, content_index=0, **fields)

    def _part_event(self, item: _OpenItem, kind: str, text: str) -> Event:
        return self._event(kind, **item.path, content_index=0, part=_part(item.kind, text))

    def _finish(self, finish: FinishReason) -> list[Event]:
        cut = finish is FinishReason.LENGTH
        self._status = INCOMPLETE if cut else COMPLETED
        events: list[Event] = []
        if not self._output:
            events += self._opened("message")[1]  # an answer without a text has an empty one
        events += self._closed(self._status)
        self._tail = {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": self._prompt_tokens,
                "input_tokens_details": {"cached_tokens": self._cached_tokens, "cache_write_tokens": 0},
                "output_tokens": self._tokens,
                "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
                "total_tokens": self._prompt_tokens + self._tokens,
            },
        }
        return [*events, self._of_response(f"response.{self._status}")]


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def _head(body: ResponsesRequest, model: str, identity: Identity) -> dict[str, Any]:
    """What a response repeats of its request, as OpenAI's does."""
    wanted = (body.text.format if body.text else None) or TextFormat(type="text")
    reasoning = {"effort": body.reasoning.effort if body.reasoning else None, "summary": None}
    return {
        "id": f"resp_{identity.id}",
        "object": "response",
        "created_at": identity.created,
        "status": IN_PROGRESS,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": reasoning,
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": _without_nulls(wanted)},
        "tool_choice": "auto" if body.tool_choice is None else msgspec.to_builtins(body.tool_choice),
        "tools": [msgspec.to_builtins(tool) for tool in body.tools or ()],
        "top_logprobs": 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def _without_nulls(value: Any) -> dict[str, Any]:
    return {name: item for name, item in msgspec.to_builtins(value).items() if item is not None}
