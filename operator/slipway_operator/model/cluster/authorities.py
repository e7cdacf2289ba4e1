"""The release's certificate authorities: which one signs, which are trusted, and the periods of certificates.

All of this follows from the time and from the content of the Secret. The first authority signs, and all are trusted.
A new authority is trusted everywhere before it signs; a former one is trusted until its last certificate expires.
"""

import base64
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

DATA = "authorities.json"  # data field of the Secret
SEED_BYTES = 32
DAY_S = 86_400.0
BACKDATED_S = 3600.0  # certificates are valid this long before their start, for machines with slow clocks

_ID = re.compile(r"[0-9a-f]{8}")
_RENEWED_AT = 2 / 3


class UnreadableAuthorities(ValueError):
    """The content of the Secret is not what the operator writes."""


@dataclass(frozen=True, slots=True)
class Terms:
    """`leaf_s`: validity of a certificate. `rotation_s`: age of an authority at which its successor is made.

    `propagation_s`: time in which every process gets a changed Secret; kubelets need a minute or two, or longer while
    the API server is down.
    """

    leaf_s: float = 90 * DAY_S
    rotation_s: float = 365 * DAY_S
    propagation_s: float = DAY_S

    @property
    def renewal_s(self) -> float:
        """Age of a certificate at which it is replaced."""
        return self.leaf_s * _RENEWED_AT

    @property
    def authority_s(self) -> float:
        """Validity of an authority: twice its time in use, so that it does not expire while no operator runs."""
        return 2 * (self.rotation_s + self.propagation_s + self.leaf_s)


class Authority(msgspec.Struct, frozen=True):
    """`seed`: SEED_BYTES in base64url, source of all keys. `since`: Unix seconds of its last step in the rotation."""

    id: str
    seed: str
    created: float
    since: float = msgspec.field(name="from")

    def derive(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose, by HMAC: they reveal neither the seed nor the bytes for other purposes."""
        return hmac.digest(base64.urlsafe_b64decode(self.seed), f"slipway {purpose}".encode(), "sha256")


class _AuthorityList(msgspec.Struct):
    authorities: list[Authority]


@dataclass(frozen=True, slots=True)
class Period:
    """Validity of a certificate, in Unix seconds. Its key changes with `start`."""

    start: float
    end: float


def new_authority(entropy: bytes, now: float) -> Authority:
    """Return a new authority. `entropy`: SEED_BYTES random bytes for the seed, and 4 more for the id."""
    return Authority(entropy[SEED_BYTES:].hex(), base64.urlsafe_b64encode(entropy[:SEED_BYTES]).decode(), now, now)


def advance(authorities: Sequence[Authority], now: float, terms: Terms, fresh: Authority) -> tuple[Authority, ...]:
    """Return the authorities after the next step of rotation; `authorities` unchanged when none is due.

    The steps: add `fresh`, let it sign, remove the former one. Of two, the one with the later `created` is the newer.
    """
    known = tuple(_not_ahead(one, now) for one in authorities[:2] if _is_valid(one, now, terms))
    if not known:
        return (fresh,)
    first = known[0]
    if len(known) == 1:
        is_old = now - first.created >= terms.rotation_s
        return (first, msgspec.structs.replace(fresh, since=now)) if is_old else known
    second = known[1]
    if second.created > first.created:
        trusted_everywhere = now - second.since >= terms.propagation_s
        return (msgspec.structs.replace(second, since=now), first) if trusted_everywhere else known
    over = now - first.since >= terms.leaf_s + terms.propagation_s
    return (first,) if over else known


def period(name: str, now: float, terms: Terms) -> Period:
    """Return the validity of the certificate of `name` at `now`; every process computes the same.

    Renewals of different names are spread over `renewal_s`, so that not all certificates change in one minute.
    """
    spread = int.from_bytes(hmac.digest(b"slipway period", name.encode(), "sha256")[:8]) / 2**64 * terms.renewal_s
    start = (now + spread) // terms.renewal_s * terms.renewal_s - spread
    return Period(start, start + terms.leaf_s)


def parse(data: dict[str, str]) -> tuple[Authority, ...]:
    """The authorities in a Secret's `data`.

    Raises:
        UnreadableAuthorities: the message names the problem and contains no part of a key.
    """
    try:
        text = base64.b64decode(data.get(DATA) or "", validate=True)
        found = tuple(msgspec.json.decode(text, type=_AuthorityList).authorities)[:2] if text else ()
        bad = [one for one in found if not _ID.fullmatch(one.id) or _size(one) != SEED_BYTES]
    except (ValueError, msgspec.DecodeError) as error:
        raise UnreadableAuthorities(f"{DATA} is not what the operator writes ({type(error).__name__})") from None
    if bad or len({one.id for one in found}) < len(found):
        raise UnreadableAuthorities(f"{DATA} has a seed of another length, or an id that is no id or is there twice")
    return found


def render(authorities: Sequence[Authority]) -> str:
    """Return the value of the field DATA in the Secret, in base64."""
    return base64.b64encode(msgspec.json.encode(_AuthorityList(list(authorities)))).decode()


def _size(one: Authority) -> int:
    return len(base64.urlsafe_b64decode(one.seed))


def _not_ahead(one: Authority, now: float) -> Authority:
    """Limit `since` to `now`: a clock that was ahead must not delay the next step by more than one interval."""
    return one if one.since <= now else msgspec.structs.replace(one, since=now)


def _is_valid(one: Authority, now: float, terms: Terms) -> bool:
    return one.created - BACKDATED_S <= now < one.created + terms.authority_s
