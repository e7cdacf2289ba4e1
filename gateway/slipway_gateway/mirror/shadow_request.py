"""What a mirrored request asks: the client's own bytes, marked as a shadow; a seed where chance would decide (pure)."""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec
from multidict import CIMultiDict
from xxhash import xxh64_intdigest

from ..wire.headers import SHADOW, TENANT

# Endpoints that take a seed; the others refuse a field that they do not know.
SEEDED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/generate")
_LEFT_OUT = ("x-slipway-", "accept-encoding")
_MAX_SEED = (1 << 31) - 1  # of the smallest integers that servers keep seeds in


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to one server."""

    path_qs: str
    headers: CIMultiDict[str]
    body: bytes

    @property
    def path(self) -> str:
        return self.path_qs.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Pinned:
    """A request whose answer is the same each time.

    `anew`: stable drew its own answer by chance, so stable has to be asked once more too.
    """

    ask: Ask
    anew: bool


class _Chance(msgspec.Struct):
    """Fields by which an answer is drawn."""

    temperature: Any = None
    seed: Any = None


_CHANCE = msgspec.json.Decoder(_Chance)


def shadow(asked: Ask) -> Ask:
    """A client's request as a shadow. It has a tenant of its own: no share and no cache of the client's is touched."""
    # Marks between events, of streams that go on elsewhere, and compression would only have to be read past.
    kept = ((name, value) for name, value in asked.headers.items() if not name.lower().startswith(_LEFT_OUT))
    headers = CIMultiDict(kept)
    headers[SHADOW] = "1"
    headers[TENANT] = hashlib.sha256(f"shadow:{asked.headers.get(TENANT, '')}".encode()).hexdigest()[:32]
    return Ask(asked.path_qs, headers, asked.body)


def pinned(ask: Ask, request_id: str) -> Pinned | None:
    """A shadow for a comparison; None when chance would decide what its answer says."""
    drawn = _CHANCE.decode(ask.body)
    if drawn.seed is not None or _is_zero(drawn.temperature):
        return Pinned(ask, anew=False)
    if ask.path not in SEEDED_PATHS:
        return None
    seed = xxh64_intdigest(request_id.encode()) & _MAX_SEED
    return Pinned(Ask(ask.path_qs, ask.headers, _with_seed(ask.body, seed)), anew=True)


def _is_zero(temperature: object) -> bool:
    return isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0


def _with_seed(body: bytes, seed: int) -> bytes:
    """One more field at the end of the object, so that nothing else of it changes; the last one of a name counts."""
    opened = body.rstrip().removesuffix(b"}").rstrip()
    comma = b"" if opened.endswith(b"{") else b","
    return opened + comma + b'"seed":%d}' % seed
