"""The texts in bodies of requests and responses, by the path of each, and bodies with other texts (pure).

A body becomes objects here, because any part of it may be a text. Its bytes and its values are bounded before that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..wire.inference import TEXT_PATHS, is_predict
from ..wire.json_values import UNREADABLE
from ..wire.responses import WITHOUT_MODEL
from .protocol import GuardFailed
from .verdict import Spans, redacted

MAX_BODY_BYTES = 4 << 20
MAX_TEXT_CHARACTERS = 1 << 20  # of all texts of one call
MAX_TEXTS = 4096
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
    found = Body(_decoded(body))
    if not isinstance(found.value, dict):
        raise GuardFailed("the request is no JSON object")
    if any(name.lower() == "prompt_embeds" and value is not None for name, value in found.value.items()):
        raise GuardFailed("a prompt of embeddings is no text")
    for name in found.value:
        # Servers that are written in Go take names of members in any case.
        if name.lower() in _REQUEST_FIELDS:
            tokens = name.lower() in ("prompt", "input", "inputs")
            found.parts += _walk(found.value, name, name, (name,), tokens=tokens)
    return _bounded(found)


def of_response(body: bytes) -> Body:
    """The texts of a whole response. Raises GuardFailed: it is no JSON, a text alone, or too long."""
    found = Body(_decoded(body))
    if isinstance(found.value, dict):
        for name in found.value:
            if name not in _NO_TEXT and name not in _ECHOES:
                found.parts += _walk(found.value, name, name, (name,))
    else:
        found.parts += _of_other(found.value)
    return _bounded(found)


def of_event(value: Any) -> list[TextPart]:
    """The texts of one event of a stream. Their channel is the same in all events that continue a text.

    Raises:
        GuardFailed: it is a text alone, or nested too deeply.
    """
    if not isinstance(value, dict):
        return list(_of_other(value))
    indexes = tuple(value[name] for name in _INDEXES if isinstance(value.get(name), int))
    kind = value.get("type")
    about = (kind, *indexes) if isinstance(kind, str) else ()
    parts: list[TextPart] = []
    for name, item in value.items():
        if name in _NO_TEXT:
            continue
        if name == "response" and isinstance(item, dict):
            for inner in item:
                if inner not in _NO_TEXT and inner not in _ECHOES:
                    parts += _walk(item, inner, f"response.{inner}", (*about, inner))
        else:
            parts += _walk(value, name, name, (*about, name))
    return parts


def _of_other(value: Any) -> Iterator[TextPart]:
    """The texts of what is no object. Raises GuardFailed: it is a text, which nothing holds."""
    if isinstance(value, str):
        raise GuardFailed("it is a text alone")
    return _walk([value], 0, "", ("",))


def forget_tokens(value: Any, depth: int = 0) -> None:
    """Empties members that have the text of a response once more, token by token."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            forget_tokens(item, depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _TOKENS:
                value[name] = [] if isinstance(item, list) else None
            else:
                forget_tokens(item, depth + 1)


def has_other_tokens(value: Any, depth: int = 0) -> bool:
    """Whether tokens of a response have another text than the one beside them, or one that is not known.

    A server that waits with a text, as for the rest of a stop sequence, has sent the tokens of it already. White space
    does not count: engines write the first one of a token in several ways.
    """
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, list):
        return any(has_other_tokens(item, depth + 1) for item in value)
    if not isinstance(value, dict):
        return False
    logprobs, ids = value.get("logprobs"), value.get("token_ids")
    if logprobs or ids:
        parts = (part for name in value if name not in _NO_TEXT for part in _walk(value, name, name, ()))
        tokens = _token_texts(logprobs)
        if not tokens or _bare(tokens) != _bare(part.text for part in parts):
            return True
    return any(has_other_tokens(item, depth + 1) for name, item in value.items() if name not in _TOKENS)


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


def _decoded(body: bytes) -> Any:
    if len(body) > MAX_BODY_BYTES:
        raise GuardFailed(f"a body that guards look at has at most {MAX_BODY_BYTES >> 20} MiB")
    try:
        return _ANY.decode(body)
    except (*UNREADABLE, ValueError):
        raise GuardFailed("the body is no JSON") from None


def _bounded(body: Body) -> Body:
    characters = sum(len(part.text) for part in body.parts)
    if len(body.parts) > MAX_TEXTS or characters > MAX_TEXT_CHARACTERS:
        raise GuardFailed(f"guards look at {MAX_TEXTS} texts with {MAX_TEXT_CHARACTERS} characters at most")
    # Names of members may have dots and brackets: two texts with one path would hide one of them.
    known: set[str] = set()
    for place, part in enumerate(body.parts):
        if part.path in known:
            part.path = f"{part.path}#{place}"
        known.add(part.path)
    return body


def _walk(
    holder: Any, key: str | int, path: str, channel: tuple[Any, ...], depth: int = 0, *, tokens: bool = False
) -> Iterator[TextPart]:
    """The texts of a value. `tokens`: numbers in a list are the ids of a text.

    Raises:
        GuardFailed: it has such ids, or is nested too deeply.
    """
    value = holder[key]
    if isinstance(value, str):
        yield TextPart(path, holder, key, channel)
    elif depth > _MAX_DEPTH and isinstance(value, list | dict):
        raise GuardFailed("the body is nested too deeply")
    elif isinstance(value, list):
        if tokens and any(isinstance(item, int | float) for item in value):
            raise GuardFailed("token ids are no text: send the text")
        for place, item in enumerate(value):
            index = item.get("index") if isinstance(item, dict) else None
            name = index if isinstance(index, int) else place
            yield from _walk(value, place, f"{path}[{place}]", (*channel, name), depth + 1, tokens=tokens)
    elif isinstance(value, dict):
        for name in value:
            if name not in _NO_TEXT:
                yield from _walk(value, name, f"{path}.{name}", (*channel, name), depth + 1)
