"""A mirrored request: the client's own bytes, marked as a shadow, with a seed where sampling is random (pure)."""

import hashlib
import re
import zlib
from dataclasses import dataclass, replace

import msgspec
from msgspec import Raw
from multidict import CIMultiDict
from xxhash import xxh64_intdigest

from slipway_contracts.headers import PREFIX, SHADOW, TENANT

from ..upstream.adapters import AdapterCall
from ..wire import members
from ..wire.inference import TEXT_PATHS, infers
from ..wire.isolation import Isolation
from ..wire.json_values import (
    ABSENT,
    MAX_FIRST,
    count_items,
    does_nothing,
    first_items,
    is_list,
    is_null,
    read_value,
    text_of,
)

# Endpoints that take a seed; the others refuse a field that they do not know.
SEEDED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/generate")
# Endpoints that store nothing and act on nothing. Only requests of these, and of classic models, are copied to pairs.
STATELESS_PATHS = (*SEEDED_PATHS, "/v1/embeddings", "/api/v1/generate", "/api/v1/embed", *TEXT_PATHS)
_BY_MODEL = ("/api/v1/models/", "/generate")
_IDEMPOTENCY = "idempotency-key"  # names the client's own call; a copy is another one
_LEFT_OUT = (PREFIX, "accept-encoding")
# A request of a sequence changes the state that a server keeps of it. All encodings have the parameter's name as it is.
_OF_SEQUENCE = b"sequence_id"
_MAX_PLAIN_BYTES = 1 << 20  # of a compressed body that is searched for it
_ANY_FORMAT = 47  # of zlib: gzip or deflate
_ZERO, _LONGEST_ZERO = re.compile(rb"-?0(?:\.0+)?(?:[eE][-+]?[0-9]+)?"), 64
_MAX_SEED = (1 << 31) - 1  # of the smallest integers that servers keep seeds in


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """One request to one server."""

    path_qs: str
    headers: CIMultiDict[str]
    body: bytes
    isolation: Isolation | None = None  # of a tenant's request
    adapter: AdapterCall | None = None  # of a request for an adapter

    def at(self, revision: str, engine: str) -> "ShadowRequest":
        """The request for a revision at an engine of this type."""
        if (call := self.adapter) is None:
            return self
        path_qs, body = call.path_qs(self.path_qs, revision, engine), call.body(self.body, revision, engine)
        return replace(self, path_qs=path_qs, body=body, adapter=None)

    @property
    def path(self) -> str:
        return self.path_qs.partition("?")[0]


@dataclass(frozen=True, slots=True)
class RepeatableRequest:
    """A request with a deterministic response.

    `repeat_stable`: stable sampled its own response, so stable gets the request once more too.
    """

    request: ShadowRequest
    repeat_stable: bool


class _SamplingFields(msgspec.Struct):
    """Fields that decide whether sampling is random."""

    temperature: Raw = ABSENT
    seed: Raw = ABSENT


class _EffectFields(_SamplingFields):
    """Fields by which a request stores something, or has its server call something."""

    store: Raw = ABSENT
    background: Raw = ABSENT
    tools: Raw = ABSENT
    web_search_options: Raw = ABSENT


class _Tool(msgspec.Struct):
    type: Raw = ABSENT


_TOOL = msgspec.json.Decoder(_Tool)
_EFFECTS = msgspec.json.Decoder(_EffectFields)
_CHANCE = msgspec.json.Decoder(_SamplingFields)


def make_shadow(request: ShadowRequest) -> ShadowRequest:
    """A client's request, marked as a shadow. A tenant of its own keeps it apart from the client's share and cache."""
    # Left out: headers that request compression, or the marks between events by which a stream can be resumed.
    kept = ((name, value) for name, value in request.headers.items() if not name.lower().startswith(_LEFT_OUT))
    headers = CIMultiDict(kept)
    headers[SHADOW] = "1"
    headers[TENANT] = hashlib.sha256(f"shadow:{request.headers.get(TENANT, '')}".encode()).hexdigest()[:32]
    isolation = request.isolation.of_shadow() if request.isolation else None
    return ShadowRequest(request.path_qs, headers, request.body, isolation, request.adapter)


def make_pair_copy(request: ShadowRequest, request_id: str) -> ShadowRequest | None:
    """The request of both legs of a pair: a shadow that stores nothing, with one seed. None if it has side effects.

    Tools of the client are safe, because the client calls them. Other tools are called by the server.
    """
    if infers(request.path):
        return _make_repeatable_inference(request)
    if not _is_stateless(request.path):
        return None
    fields = _EFFECTS.decode(request.body)
    if not (does_nothing(fields.background) and is_null(fields.web_search_options) and _are_functions(fields.tools)):
        return None
    shadow = make_shadow(request)
    shadow.headers.popall(_IDEMPOTENCY, None)
    body = shadow.body if does_nothing(fields.store) else members.with_member(shadow.body, b"store", b"false")
    drawn = is_null(fields.seed) and not _is_zero(fields.temperature) and request.path in SEEDED_PATHS
    body = _with_seed(body, xxh64_intdigest(request_id.encode()) & _MAX_SEED) if drawn else body
    return replace(shadow, body=body)


def _make_repeatable_inference(request: ShadowRequest) -> ShadowRequest | None:
    """A copy of a request to a classic model; None for one of a sequence, and for one that cannot be read for that."""
    plain = request.body
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        reader = zlib.decompressobj(_ANY_FORMAT)
        try:
            plain = reader.decompress(request.body, _MAX_PLAIN_BYTES)
        except zlib.error:
            return None
        if not reader.eof:
            return None
    if _OF_SEQUENCE in plain:
        return None
    shadow = make_shadow(request)
    shadow.headers.popall(_IDEMPOTENCY, None)
    return shadow


def _is_stateless(path: str) -> bool:
    begin, end = _BY_MODEL
    return path in STATELESS_PATHS or (path.startswith(begin) and path.endswith(end))


def _are_functions(tools: Raw) -> bool:
    if is_null(tools):
        return True
    if not is_list(tools) or count_items(tools) > MAX_FIRST:
        return False
    return all(map(_is_function, first_items(tools)))


def _is_function(tool: Raw) -> bool:
    found = read_value(_TOOL, tool, len(tool))
    return found is not None and (found.type is ABSENT or text_of(found.type) == "function")


def make_repeatable(request: ShadowRequest, request_id: str) -> RepeatableRequest | None:
    """A shadow for a comparison; None when its response would be random."""
    sampling = _CHANCE.decode(request.body)
    if not is_null(sampling.seed) or _is_zero(sampling.temperature):
        return RepeatableRequest(request, repeat_stable=False)
    if request.path not in SEEDED_PATHS:
        return None
    seed = xxh64_intdigest(request_id.encode()) & _MAX_SEED
    return RepeatableRequest(replace(request, body=_with_seed(request.body, seed)), repeat_stable=True)


def _is_zero(temperature: Raw) -> bool:
    return len(temperature) <= _LONGEST_ZERO and _ZERO.fullmatch(temperature) is not None


def _with_seed(body: bytes, seed: int) -> bytes:
    return members.with_member(body, b"seed", b"%d" % seed)
