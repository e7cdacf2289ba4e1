"""Tokens of OIDC issuers (RFC 7519): what is read before keys are known, and what a verified one proves (pure)."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt
import msgspec
from msgspec import Raw

from ..wire.json_values import ABSENT, UNREADABLE, first_items, read_value

MAX_TOKEN_BYTES = 8192
MAX_KEYS = 64  # of an issuer
LEEWAY_S = 30.0  # by which clocks may differ
# By the type of a key, so that no key is used with the algorithm of another type; none is symmetric.
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}


class _Head(msgspec.Struct):
    alg: str
    kid: str = ""


class _Body(msgspec.Struct):
    """The claims that are read. Those of type Any are ignored where they have another type than RFC 7519 gives them."""

    iss: str
    sub: Any = None
    aud: Any = None
    exp: Any = None


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """A token as it was sent. All but `text` are its own claims: they choose who verifies it, and prove nothing.

    `expires_s`: Unix time; None: never.
    """

    text: str = field(repr=False)
    issuer: str
    kid: str
    algorithm: str
    subject: str = ""
    audiences: frozenset[str] = frozenset()
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """One public key of an issuer."""

    kid: str
    algorithms: tuple[str, ...]
    key: Any  # of cryptography


class _Jwk(msgspec.Struct, omit_defaults=True):
    """A key of a JWKS, with the members by which the types of `_ALGORITHMS` are known (RFC 7517, 7518, 8037)."""

    kty: str
    use: str = "sig"
    alg: str | None = None
    kid: str = ""
    n: str | None = None
    e: str | None = None
    crv: str | None = None
    x: str | None = None
    y: str | None = None


class _Jwks(msgspec.Struct):
    keys: Raw = ABSENT


_JWK, _JWKS = msgspec.json.Decoder(_Jwk), msgspec.json.Decoder(_Jwks)
_MAX_KEY_BYTES = 16 << 10  # of one key with its certificates


class UnusableKeys(ValueError):
    """What an issuer serves is no JWKS."""


def read(text: str) -> UnverifiedToken | None:
    """Reads a token without verifying it; None: the text is no signed token of the compact form."""
    parts = text.split(".")
    if len(parts) != 3 or len(text) > MAX_TOKEN_BYTES or not text.isascii():
        return None
    try:
        head = msgspec.json.decode(_base64(parts[0]), type=_Head)
        body = msgspec.json.decode(_base64(parts[1]), type=_Body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    subject = body.sub if isinstance(body.sub, str) else ""
    expires_s = body.exp if isinstance(body.exp, int | float) and not isinstance(body.exp, bool) else None
    return UnverifiedToken(text, body.iss, head.kid, head.alg, subject, audiences({"aud": body.aud}), expires_s)


def parse_keys(content: bytes) -> tuple[IssuerKey, ...]:
    """The keys of a JWKS that verify signatures; those of other kinds are left out.

    Raises:
        UnusableKeys: when there is none.
    """
    try:
        listed = first_items(_JWKS.decode(content).keys)[:MAX_KEYS]
    except UNREADABLE as error:
        raise UnusableKeys(f"no JSON object: {error}") from None
    found = [key for one in listed if (key := _key(one)) is not None]
    if not found:
        raise UnusableKeys("no key of a type that is used: RSA, EC, OKP")
    return tuple(found)


def candidates(keys: Iterable[IssuerKey], token: UnverifiedToken) -> list[IssuerKey]:
    """The keys that the token may be signed with."""
    fitting = [key for key in keys if token.algorithm in key.algorithms]
    return [key for key in fitting if key.kid == token.kid] if token.kid else fitting


def verify(token: UnverifiedToken, keys: Iterable[IssuerKey], now: float) -> dict[str, Any] | None:
    """The claims of a token that one of these keys signed; None when none did, or it is not valid at `now`."""
    for key in keys:
        try:
            # PyJWT reads the clock for times; here they are compared with `now`.
            claims: dict[str, Any] = jwt.decode(
                token.text,
                key.key,
                algorithms=list(key.algorithms),
                issuer=token.issuer,
                options={"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        return claims if _in_time(claims, now) else None
    return None


def audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    given = claims.get("aud")
    listed = given if isinstance(given, list) else [given]
    return frozenset(one for one in listed if isinstance(one, str))


def has_claims(claims: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether each wanted claim has its value; a claim that is a list, such as groups, must have it as an item."""
    return all(_holds(claims.get(name), value) for name, value in wanted.items())


def _holds(given: Any, wanted: str) -> bool:
    return wanted in given if isinstance(given, list) else given == wanted


def _in_time(claims: Mapping[str, Any], now: float) -> bool:
    """Whether a token is valid at `now` by `nbf` and `exp`, with LEEWAY_S. A token without `exp` never is."""
    expires, begins = claims.get("exp"), claims.get("nbf", 0)
    if not isinstance(expires, int | float) or not isinstance(begins, int | float):
        return False
    return begins - LEEWAY_S <= now < expires + LEEWAY_S


def _key(listed: Raw) -> IssuerKey | None:
    one = read_value(_JWK, listed, _MAX_KEY_BYTES)
    if one is None or one.use != "sig" or one.kty not in _ALGORITHMS:
        return None
    algorithms = _ALGORITHMS[one.kty]
    if one.alg is not None:
        algorithms = (one.alg,) if one.alg in algorithms else ()
    try:
        key = jwt.PyJWK(msgspec.to_builtins(one) | {"alg": algorithms[0]}).key if algorithms else None
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    return None if key is None else IssuerKey(one.kid, algorithms, key)


def _base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
