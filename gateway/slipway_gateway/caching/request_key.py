"""Which requests are equal, and which of them have one response (pure).

All fields of a body are part of a key except those that are known to change no response: a list of the fields that do
would miss those of a later engine, and answer a request with the response to another one.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..wire.inference import infers
from ..wire.responses import is_text_path
from .digests import digest_of, written
from .embeddings import inputs_of, item_digests
from .entry import FORMATS

# Reading a longer body, or one of more objects, would delay other requests: up to 20 ms within these bounds.
MAX_KEY_BYTES, MAX_OBJECTS = 256 << 10, 4096
EMBEDDINGS = "/v1/embeddings"
_EMBEDDINGS = (EMBEDDINGS, "/api/v1/embed")
RESPONSES = "/v1/responses"
SHARED = "shared"  # the scope of a cache whose tenants get responses to requests of each other
# Who sends a request, and how its response is sent. `stream_options` are part of the key of a stream.
_LEFT_OUT = frozenset(
    {"stream", "stream_options", "user", "metadata", "safety_identifier", "prompt_cache_key", "priority"}
)
# What a response depends on beside its request.
_OUTSIDE = ("previous_response_id", "conversation", "background", "web_search_options", "container")


class CanonicalRequest(msgspec.Struct, frozen=True):
    """A request that has one response. `digest`: equal for equal requests, of 32 bytes. `stream`: of its response.

    `inputs`: of a request for embeddings, whose responses are kept by input; `items` are their digests, and `fields`
    all of its body.
    """

    digest: bytes
    stream: bool = False
    fields: Mapping[str, Any] = {}
    inputs: Sequence[Any] = ()
    items: Sequence[bytes] = ()


class _Ambiguous(ValueError):
    """A name appears twice in an object: servers differ in which of the values they take."""


def canonical(
    path_qs: str, headers: Mapping[str, str], body: bytes, *, strips_usage: bool = False
) -> CanonicalRequest | None:
    """A request that has one response; None for one that has not, or that is not read.

    `headers`: case-insensitive. `strips_usage`: the gateway requested the usage of a stream, and not the client.
    """
    path = path_qs.partition("?")[0]
    if len(body) > MAX_KEY_BYTES:
        return None
    formats = [headers.get(name, "") for name in FORMATS]
    if is_opaque(path):
        return CanonicalRequest(digest_of((path_qs, *formats, body)))
    fields = read_fields(body)
    if fields is None or not has_one_response(path, fields):
        return None
    stream = fields.get("stream") is True
    options = _options(fields.get("stream_options"), strips_usage=strips_usage) if stream else None
    left_out = _LEFT_OUT if not infers(path) else frozenset[str]()
    kept = {name: value for name, value in fields.items() if name not in left_out}
    parts = (path_qs, *formats, "stream" if stream else "whole", written(options), written(kept))
    inputs = inputs_of(fields) if path == EMBEDDINGS else None
    if inputs is None:
        return CanonicalRequest(digest_of(parts), stream)
    return CanonicalRequest(digest_of(parts), stream, fields, inputs, item_digests(path_qs, formats, kept, inputs))


def entry_key(scope: str, route: str, uid: str, revision: str, digest: bytes) -> bytes:
    """The key of an entry. `scope`: whose entries they are. `uid`: of the route's object, which a new one has not."""
    return digest_of((scope, route, uid, revision, digest))


def scope_of(tenant: str, *, is_shared: bool) -> str:
    """Whose entries a request gets. `tenant`: as servers know it."""
    return SHARED if is_shared else f"tenant {tenant}"


def is_opaque(path: str) -> bool:
    """Whether bodies of a path are compared byte for byte: tensors may be binary, and their JSON is long."""
    return infers(path) and path.startswith(("/v2/models/", "/v1/models/"))


def has_one_response(path: str, fields: Mapping[str, Any]) -> bool:
    """Whether the response to a request depends on nothing but its fields and the revision."""
    if any(fields.get(name) for name in _OUTSIDE) or not _calls_functions_alone(fields.get("tools")):
        return False
    if path in _EMBEDDINGS or infers(path):
        return True
    if not is_text_path(path):
        return False
    # A server of the Responses API stores a response unless a request forbids it: a copy could not be referred to.
    if path == RESPONSES and fields.get("store") is not False:
        return False
    return fields.get("store") is not True and (_is_zero(fields.get("temperature")) or _is_seed(fields.get("seed")))


def read_fields(body: bytes) -> dict[str, Any] | None:
    """The fields of a body; None where it is no JSON object, an ambiguous one, or one of too many objects."""
    if body.count(b"{") > MAX_OBJECTS:
        return None
    try:
        fields = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _Ambiguous
    return fields


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _options(options: Any, *, strips_usage: bool) -> Any:
    """What changes the events of a stream."""
    if not isinstance(options, dict):
        return None
    kept = {name: value for name, value in options.items() if value and not (strips_usage and name == "include_usage")}
    return kept or None


def _calls_functions_alone(tools: Any) -> bool:
    """Whether no tool of a request is one that its server runs itself."""
    if not tools:
        return True
    return isinstance(tools, list) and all(isinstance(tool, dict) and tool.get("type") == "function" for tool in tools)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse)
