"""The texts in bodies of requests and responses, by the path of each, and bodies with other texts (pure).

A body becomes objects here, because any part of it may be a text. Its bytes and its values are bounded before that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from slipway_process import json_bounds

from ..wire.inference import TEXT_PATHS, is_predict
from ..wire.json_values import UNREADABLE
from ..wire.responses import WITHOUT_MODEL
from .protocol import GuardFailed
from .verdict import Spans, redacted

MAX_BODY_BYTES = 4 << 20
MAX_TEXT_CHARACTERS = 1 << 20  # of all texts of one call
MAX_TEXTS = 4096
MAX_EVENT_TEXTS = 1024  # of one event of a stream
# Lists, objects and texts among which texts are searched for, which nothing interrupts.
MAX_SEARCHED = 4 * MAX_TEXTS
# Those of a response have log probabilities beside them, of some thousand tokens, which are not searched.
_MAX_OBJECTS_OF_RESPONSE = 1 << 18
_MAX_DEPTH = 32
# Members of a request that go into the prompt.
_REQUEST_FIELDS = (
    "messages",
    "prompt",
    "suffix",
    "system",
    "instructions",
    "input",
    "inputs",
    "query",
    "documents",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "queries",
    "items",
    "texts",
    "chat_template",
    "chat_template_kwargs",
)
# Members that are no text: names, ids, numbers in words, and contents that are no text, such as images.
_NO_TEXT = frozenset({
    "type", "role", "id", "object", "model", "name", "index", "created", "status", "event", "finish_reason",
    "stop_reason", "system_fingerprint", "service_tier", "tool_call_id", "call_id", "item_id", "response_id",
    "previous_response_id", "file_id", "filename", "file_url", "file_data", "detail", "format", "media_type",
    "image_url", "image", "input_audio", "audio", "video_url", "source", "encrypted_content", "obfuscation", "usage",
    "metadata", "cache_control", "logprobs", "prompt_logprobs", "token_ids", "prompt_token_ids", "kv_transfer_params",
})  # fmt: skip
# Members of a response that repeat the request.
_ECHOES = frozenset({"instructions", "input", "prompt", "tools", "tool_choice", "text_format", "reasoning"})
# Members that have the text once more, token by token.
_TOKENS = frozenset({"logprobs", "prompt_logprobs", "token_ids", "prompt_token_ids"})
_INDEXES = ("output_index", "content_index", "summary_index")  # of the Responses API
_ANY = msgspec.json.Decoder()


@dataclass(slots=True)
class TextPart:
    """One text: `holder[key]` has it."""

    path: str
    holder: Any
    key: str | int
    channel: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        found: str = self.holder[self.key]
        return found

    def replace(self, text: str) -> None:
        self.holder[self.key] = text


@dataclass(slots=True)
class Body:
    """A decoded body and its texts."""

    value: Any
    parts: list[TextPart] = field(default_factory=list)

    @property
    def texts(self) -> dict[str, str]:
        return {part.path: part.text for part in self.parts if part.text}

    def redacted(self, spans: Spans) -> bytes:
        """The body with spans replaced. Raises GuardFailed: it cannot be written."""
        for part in self.parts:
            if part.path in spans:
                part.replace(redacted(part.text, spans[part.path]))
        return encoded(self.value)


def is_guarded(path: str) -> bool:
    """Whether requests to a path have texts: those for text, embeddings and rerankers. Not tensors, nor rows."""
    return path in TEXT_PATHS or not (path in WITHOUT_MODEL or is_predict(path))


def of_request(body: bytes) -> Body:
    """The texts of a request. Raises GuardFailed: it has a prompt that is no text, or too much of it."""
    found, search = Body(_decoded(body, json_bounds.MAX_OBJECTS)), _Search()
    if not isinstance(found.value, dict):
        raise GuardFailed("the request is no JSON object")
    if any(name.lower() == "prompt_embeds" and value is not None for name, value in found.value.items()):
        raise GuardFailed("a prompt of embeddings is no text")
    for name in found.value:
        # Servers that are written in Go take names of members in any case.
        if name.lower() in _REQUEST_FIELDS:
            tokens = name.lower() in ("prompt", "input", "inputs")
            search.add(found.value, name, name, (name,), tokens=tokens)
    found.parts = search.parts
    return _bounded(found)


def of_response(body: bytes) -> Body:
    """The texts of a whole response. Raises GuardFailed: it is no JSON, a text alone, or too long."""
    found, search = Body(_decoded(body, _MAX_OBJECTS_OF_RESPONSE)), _Search()
    if isinstance(found.value, dict):
        for name in found.value:
            if name not in _NO_TEXT and name not in _ECHOES:
                search.add(found.value, name, name, (name,))
    else:
        _add_other(search, found.value)
    found.parts = search.parts
    return _bounded(found)


def event(data: bytes) -> Any:
    """The data of an event of a stream. Raises GuardFailed: it is no JSON, or holds too many values."""
    try:
        json_bounds.check(data, _MAX_OBJECTS_OF_RESPONSE)
        return _ANY.decode(data)
    except json_bounds.TooManyValues as error:
        raise GuardFailed(f"an event of the stream {error}") from None
    except (*UNREADABLE, ValueError):
        raise GuardFailed("an event of the stream is no JSON") from None


def of_event(value: Any) -> list[TextPart]:
    """The texts of one event of a stream. Their channel is the same in all events that continue a text.

    Raises:
        GuardFailed: it is a text alone, has too many of them, or is nested too deeply.
    """
    search = _Search(MAX_EVENT_TEXTS)
    if not isinstance(value, dict):
        _add_other(search, value)
        return search.parts
    indexes = tuple(value[name] for name in _INDEXES if isinstance(value.get(name), int))
    kind = value.get("type")
    about = (kind, *indexes) if isinstance(kind, str) else ()
    for name, item in value.items():
        if name in _NO_TEXT:
            continue
        if name == "response" and isinstance(item, dict):
            for inner in item:
                if inner not in _NO_TEXT and inner not in _ECHOES:
                    search.add(item, inner, f"response.{inner}", (*about, inner))
        else:
            search.add(value, name, name, (*about, name))
    return search.parts


def _add_other(search: "_Search", value: Any) -> None:
    """Adds the texts of what is no object. Raises GuardFailed: it is a text, which nothing holds."""
    if isinstance(value, str):
        raise GuardFailed("it is a text alone")
    search.add([value], 0, "", ("",))


def forget_tokens(value: Any, depth: int = 0) -> None:
    """Empties members that have the text of a response once more, token by token."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            if isinstance(item, list | dict):
                forget_tokens(item, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _TOKENS:
                value[name] = [] if isinstance(item, list) else None
            elif isinstance(item, list | dict):
                forget_tokens(item, depth + 1)


def has_other_tokens(value: Any) -> bool:
    """Whether tokens of a response have another text than the one beside them, or one that is not known.

    A server that waits with a text, as for the rest of a stop sequence, has sent the tokens of it already. White space
    does not count: engines write the first one of a token in several ways.

    Raises:
        GuardFailed: it has too many values.
    """
    return _has_other_tokens(value, 0, _Search())


def _has_other_tokens(value: Any, depth: int, search: "_Search") -> bool:
    """`search`: counts what is looked at on all levels together."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, list):
        return any(_has_other_tokens(item, depth + 1, search) for item in value if isinstance(item, list | dict))
    if not isinstance(value, dict):
        return False
    logprobs, ids = value.get("logprobs"), value.get("token_ids")
    if logprobs or ids:
        tokens = _token_texts(logprobs)
        if not tokens:
            return True
        begin = len(search.parts)
        for name in value:
            if name not in _NO_TEXT:
                search.add(value, name, name, ())
        if _bare(tokens) != _bare(part.text for part in search.parts[begin:]):
            return True
    items = (item for name, item in value.items() if name not in _TOKENS and isinstance(item, list | dict))
    return any(_has_other_tokens(item, depth + 1, search) for item in items)


def _token_texts(logprobs: Any) -> list[str]:
    """The texts of tokens, in the shapes of completions, of chats and of the Responses API."""
    if isinstance(logprobs, dict):
        lists = [logprobs.get(name) for name in ("tokens", "content", "refusal")]
    else:
        lists = [logprobs]
    items = (item for items in lists if isinstance(items, list) for item in items)
    texts = (item.get("token") if isinstance(item, dict) else item for item in items)
    return [text for text in texts if isinstance(text, str)]


def _bare(texts: Iterable[str]) -> str:
    return "".join("".join(texts).split())


def encoded(value: Any) -> bytes:
    """Raises GuardFailed: it has characters that UTF-8 has not."""
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise GuardFailed("the body cannot be written again") from None


def _decoded(body: bytes, max_objects: int) -> Any:
    if len(body) > MAX_BODY_BYTES:
        raise GuardFailed(f"a body that guards look at has at most {MAX_BODY_BYTES >> 20} MiB")
    try:
        json_bounds.check(body, max_objects)
        return _ANY.decode(body)
    except json_bounds.TooManyValues as error:
        raise GuardFailed(f"the body {error}") from None
    except (*UNREADABLE, ValueError):
        raise GuardFailed("the body is no JSON") from None


def _bounded(body: Body) -> Body:
    characters = sum(len(part.text) for part in body.parts)
    if characters > MAX_TEXT_CHARACTERS:
        raise GuardFailed(f"guards look at texts with {MAX_TEXT_CHARACTERS} characters at most")
    # Names of members may have dots and brackets: two texts with one path would hide one of them.
    known: set[str] = set()
    for place, part in enumerate(body.parts):
        if part.path in known:
            part.path = f"{part.path}#{place}"
        known.add(part.path)
    return body


class _Search:
    """The texts of some values, in their order: `most` at most."""

    def __init__(self, most: int = MAX_TEXTS) -> None:
        self.parts: list[TextPart] = []
        self._most, self._left = most, MAX_SEARCHED

    def add(
        self, holder: Any, key: str | int, path: str, channel: tuple[Any, ...], depth: int = 0, *, tokens: bool = False
    ) -> None:
        """Adds the texts of `holder[key]`. `tokens`: numbers in a list are the ids of a text.

        Raises:
            GuardFailed: it has such ids, is nested too deeply, or has too many values or texts.
        """
        value = holder[key]
        if isinstance(value, str):
            if len(self.parts) >= self._most:
                raise GuardFailed(f"guards look at {self._most} texts at most")
            self._count()
            self.parts.append(TextPart(path, holder, key, channel))
        elif isinstance(value, list | dict):
            self._count()
            if depth > _MAX_DEPTH:
                raise GuardFailed("the body is nested too deeply")
            if isinstance(value, list):
                self._add_list(value, path, channel, depth + 1, tokens=tokens)
            else:
                for name, item in value.items():
                    if name not in _NO_TEXT and isinstance(item, str | list | dict):
                        self.add(value, name, f"{path}.{name}", (*channel, name), depth + 1)

    def _add_list(self, value: list[Any], path: str, channel: tuple[Any, ...], depth: int, *, tokens: bool) -> None:
        if tokens and any(isinstance(item, int | float) for item in value):
            raise GuardFailed("token ids are no text: send the text")
        for place, item in enumerate(value):
            if isinstance(item, str | list | dict):
                index = item.get("index") if isinstance(item, dict) else None
                name = index if isinstance(index, int) else place
                self.add(value, place, f"{path}[{place}]", (*channel, name), depth, tokens=tokens)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise GuardFailed(f"guards look among {MAX_SEARCHED} lists, objects and texts at most")
