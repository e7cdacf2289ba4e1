"""What a provider gets of a request: its body with the provider's name of the model, and none of its headers (pure)."""

import msgspec
from msgspec import Raw

from slipway_contracts.resilience import ExternalTarget

from ..wire import members
from ..wire.json_values import ABSENT, UNREADABLE

# Paths that OpenAI's API has, behind its base URL.
PATHS = {
    "/v1/chat/completions": "/chat/completions",
    "/v1/completions": "/completions",
    "/v1/responses": "/responses",
}
_JSON, _EVENTS = "application/json", "text/event-stream"
_LONGEST_KEY = 8 << 10


class _OfEngines(msgspec.Struct):
    """What requests to engines have from this gateway, where a client's own API has more than OpenAI's. Providers that
    check their fields refuse it."""

    return_token_ids: Raw = ABSENT
    include_stop_str_in_output: Raw = ABSENT


class _Model(msgspec.Struct):
    model: Raw


_MODEL, _OF_ENGINES = msgspec.json.Decoder(_Model), msgspec.json.Decoder(_OfEngines)
# Its members are skipped: a provider may send any number of them.
_OBJECT = msgspec.json.Decoder(msgspec.defstruct("AnyObject", []))


def url_of(target: ExternalTarget, path: str) -> str:
    """Where a request goes; empty where the provider has no such path."""
    return f"{target.url}{PATHS[path]}" if path in PATHS else ""


def body_of(body: bytes, model: str) -> bytes:
    """The body with another model name, and without what providers refuse. `body`: a JSON object with a model.

    A client that writes a field of engines twice, or with escapes in its name, gets the provider's own refusal.
    """
    named = members.with_member(body, b"model", msgspec.json.encode(model), bytes(_MODEL.decode(body).model))
    for field in _OfEngines.__struct_fields__:
        value = getattr(_OF_ENGINES.decode(named), field)
        if value is not ABSENT:
            named = members.without_member(named, field.encode(), value)
    return named


def headers_of(key: str, *, stream: bool) -> dict[str, str]:
    """All headers that a provider gets beside those of HTTP itself."""
    return {
        "Authorization": f"Bearer {key}",
        "Content-Type": _JSON,
        "Accept": _EVENTS if stream else _JSON,
        "Accept-Encoding": "identity",
        "User-Agent": "slipway-gateway",
    }


def is_key(text: str) -> bool:
    """Whether a text can be sent as an API key."""
    return 0 < len(text) <= _LONGEST_KEY and all("!" <= char <= "~" for char in text)


def has_form(content_type: str, encoding: str, *, stream: bool) -> bool:
    """Whether a response has the form that was requested, by its headers."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == (_EVENTS if stream else _JSON) and encoding.strip().lower() in ("", "identity")


def is_object(body: bytes) -> bool:
    """Whether a body is a JSON object."""
    try:
        _OBJECT.decode(body)
    except UNREADABLE:
        return False
    return True
