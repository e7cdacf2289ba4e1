"""A mirrored request: the client's own bytes, marked as a shadow, with a seed where sampling is random (pure)."""

import hashlib
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec
from multidict import CIMultiDict
from xxhash import xxh64_intdigest

from ..wire.headers import SHADOW, TENANT
from ..wire.inference import TEXT_PATHS, infers

# Endpoints that take a seed; the others refuse a field that they do not know.
SEEDED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/generate")
# Endpoints that store nothing and act on nothing. Only requests of these, and of classic models, are copied to pairs.
STATELESS_PATHS = (*SEEDED_PATHS, "/v1/embeddings", "/api/v1/generate", "/api/v1/embed", *TEXT_PATHS)
_BY_MODEL = ("/api/v1/models/", "/generate")
_IDEMPOTENCY = "idempotency-key"  # names the client's own call; a copy is another one
_LEFT_OUT = ("x-slipway-", "accept-encoding")
# A request of a sequence changes the state that a server keeps of it. All encodings have the parameter's name as it is.
_OF_SEQUENCE = b"sequence_id"
_MAX_PLAIN_BYTES = 1 << 20  # of a compressed body that is searched for it
_ANY_FORMAT = 47  # of zlib: gzip or deflate
_MAX_SEED = (1 << 31) - 1  # of the smallest integers that servers keep seeds in


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """One request to one server."""

    path_qs: str
    headers: CIMultiDict[str]
    body: bytes

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

    temperature: Any = None
    seed: Any = None


class _EffectFields(_SamplingFields):
    """Fields by which a request stores something, or has its server call something."""

    store: Any = None
    background: Any = None
    tools: Any = None
    web_search_options: Any = None


_EFFECTS = msgspec.json.Decoder(_EffectFields)
_CHANCE = msgspec.json.Decoder(_SamplingFields)


def make_shadow(request: ShadowRequest) -> ShadowRequest:
    """A client's request, marked as a shadow. A tenant of its own keeps it apart from the client's share and cache."""
    # Left out: headers that request compression, or the marks between events by which a stream can be resumed.
    kept = ((name, value) for name, value in request.headers.items() if not name.lower().startswith(_LEFT_OUT))
    headers = CIMultiDict(kept)
    headers[SHADOW] = "1"
    headers[TENANT] = hashlib.sha256(f"shadow:{request.headers.get(TENANT, '')}".encode()).hexdigest()[:32]
    return ShadowRequest(request.path_qs, headers, request.body)


def make_pair_copy(request: ShadowRequest, request_id: str) -> ShadowRequest | None:
    """The request of both legs of a pair: a shadow that stores nothing, with one seed. None if it has side effects.

    Tools of the client are safe, because the client calls them. Other tools are called by the server.
    """
    if infers(request.path):
        return _make_repeatable_inference(request)
    if not _is_stateless(request.path):
        return None
    fields = _EFFECTS.decode(request.body)
    if fields.background or fields.web_search_options is not None or not _are_functions(fields.tools):
        return None
    shadow = make_shadow(request)
    shadow.headers.popall(_IDEMPOTENCY, None)
    body = _with_field(shadow.body, b'"store":false') if fields.store else shadow.body
    drawn = fields.seed is None and not _is_zero(fields.temperature) and request.path in SEEDED_PATHS
    body = _with_seed(body, xxh64_intdigest(request_id.encode()) & _MAX_SEED) if drawn else body
    return ShadowRequest(shadow.path_qs, shadow.headers, body)


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


def _are_functions(tools: object) -> bool:
    if not isinstance(tools, list):
        return tools is None
    return all(isinstance(tool, dict) and tool.get("type", "function") == "function" for tool in tools)


def make_repeatable(request: ShadowRequest, request_id: str) -> RepeatableRequest | None:
    """A shadow for a comparison; None when its response would be random."""
    sampling = _CHANCE.decode(request.body)
    if sampling.seed is not None or _is_zero(sampling.temperature):
        return RepeatableRequest(request, repeat_stable=False)
    if request.path not in SEEDED_PATHS:
        return None
    seed = xxh64_intdigest(request_id.encode()) & _MAX_SEED
    return RepeatableRequest(
        ShadowRequest(request.path_qs, request.headers, _with_seed(request.body, seed)), repeat_stable=True
    )


def _is_zero(temperature: object) -> bool:
    return isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0


def _with_seed(body: bytes, seed: int) -> bytes:
    return _with_field(body, b'"seed":%d' % seed)


def _with_field(body: bytes, field: bytes) -> bytes:
    """Adds a field at the end of a JSON object without another change; of two fields with one name the last counts."""
    opened = body.rstrip().removesuffix(b"}").rstrip()
    comma = b"" if opened.endswith(b"{") else b","
    return opened + comma + field + b"}"
