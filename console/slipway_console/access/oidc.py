"""Sign-in by OpenID Connect: what a browser keeps of one, and what its ID token has to have (pure)."""

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from slipway_console.access.refusal import ApiRefusal

# Signatures by a public key alone: with a shared secret the console would take tokens that any of its clients made.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
CLOCK_SKEW_S = 30.0
NOT_BEGUN = (
    "This sign-in was not begun in this browser, or it took longer than ten minutes. Nothing was done: begin it again."
)
_PART = r"([\w-]{43})"
_KEPT = re.compile(rf"{_PART}\.{_PART}\.{_PART}", re.ASCII)
_ERROR = re.compile(r"[a-z_]{1,64}")
_CODE = re.compile(r"[\x21-\x7e]{1,8192}")


@dataclass(frozen=True, slots=True)
class Flow:
    """One sign-in that is begun. Its browser keeps it, so that no one fills the memory of the console with them."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def begin(cls) -> "Flow":
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))

    @classmethod
    def parse(cls, text: str) -> "Flow | None":
        """What `text` wrote; None for anything else."""
        found = _KEPT.fullmatch(text)
        return cls(*found.groups()) if found else None

    def __str__(self) -> str:
        return f"{self.state}.{self.nonce}.{self.verifier}"


@dataclass(frozen=True, slots=True)
class IdToken:
    """A token for the API server. `lasts_s`: until it expires."""

    text: str
    lasts_s: float


def code_of(query: Mapping[str, str], flow: Flow | None, issuer: str) -> str:
    """The code with which the provider sent the browser back.

    Raises:
        ApiRefusal: it is not the answer to `flow`, or the provider refused.
    """
    if flow is None or not hmac.compare_digest(query.get("state", "").encode(), flow.state.encode()):
        raise ApiRefusal(400, NOT_BEGUN)
    if query.get("iss", issuer) != issuer:
        raise ApiRefusal(400, "This is the answer of another identity provider. Nothing was done: sign in again.")
    if error := query.get("error"):
        # Its description may be anyone's text: it is not shown.
        named = f" ({error})" if _ERROR.fullmatch(error) else ""
        raise ApiRefusal(403, f"The identity provider did not sign you in{named}.")
    code = query.get("code", "")
    if not _CODE.fullmatch(code):
        raise ApiRefusal(400, "The answer of the identity provider has no code. Nothing was done: sign in again.")
    return code


def check_id_token(
    text: str, keys: Mapping[str, Any], issuer: str, client_id: str, nonce: str, now_s: float
) -> IdToken:
    """The token, when it is the provider's own answer to this sign-in. `keys`: a JSON Web Key Set.

    Raises:
        ApiRefusal: it is not; the sentence says why.
    """
    try:
        claims = jwt.decode(
            text,
            _key(text, keys),
            algorithms=list(ALGORITHMS),
            audience=client_id,
            issuer=issuer,
            leeway=CLOCK_SKEW_S,
            options={"require": ["exp", "iat", "aud", "iss", "sub"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise ApiRefusal(
            502, "The ID token of the identity provider is not valid for this console.", str(error)
        ) from None
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise ApiRefusal(400, NOT_BEGUN)
    if claims.get("azp", client_id) != client_id or (
        isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and "azp" not in claims
    ):
        raise ApiRefusal(502, "The ID token of the identity provider is for another client.")
    return IdToken(text, max(0.0, float(claims["exp"]) - now_s))


def _key(text: str, keys: Mapping[str, Any]) -> jwt.PyJWK:
    """The key that a token names. Raises jwt.PyJWTError."""
    known = jwt.PyJWKSet.from_dict(dict(keys)).keys
    named = jwt.get_unverified_header(text).get("kid")
    fitting = [key for key in known if key.public_key_use in (None, "sig") and named in (None, key.key_id)]
    if len(fitting) != 1:
        raise jwt.InvalidKeyError(f"{len(fitting)} keys of the provider may have signed it")
    return fitting[0]
