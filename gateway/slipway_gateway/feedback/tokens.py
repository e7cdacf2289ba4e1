"""Tokens of answers: which revision answered, under which weights, signed with the release's keys.

Any gateway of the release can verify a token; without the keys none can be made or changed. The tenant is signed and
not part of the text, so a token of another tenant is as unknown as an invented one.
"""

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from slipway_contracts.release_keys import ReleaseKeys

from ..judging.outcome import AnswerOrigin
from ..wire.request_fields import person_of

MAX_TOKEN = 1024
_VERSION = "fb1"
_ID_BYTES, _DIGEST_BYTES, _MAC_BYTES = 12, 8, 16
_SKEW_S = 60  # by which the clocks of two gateways may differ


class Statement(msgspec.Struct, frozen=True, array_like=True):
    """What a token states of one answer.

    `table`: `table_of` the route's digest. `session`, `label`: keyed digests of the session and of the prediction;
    empty without one. `counts`: the weights alone chose the revision, and the judge looks at the session. `personal`:
    the session is a conversation or a user, and not all that one client sends. `client`: a keyed digest of it.
    `experiment`, `version`, `arm`, `unit`: what an experiment chose for the request, and a keyed digest of its unit;
    empty without one. `uid`: of the experiment, because a later one may have its name.
    """

    route: str
    generation: int
    table: bytes
    revision: str
    issued_s: int
    id: bytes
    session: bytes
    counts: bool
    label: bytes = b""
    personal: bool = False
    client: bytes = b""
    experiment: str = ""
    version: int = 0
    arm: str = ""
    unit: bytes = b""
    uid: str = ""


class Exposed(NamedTuple):
    """The arm of an experiment that a request had. `unit`: a keyed digest."""

    experiment: str = ""
    version: int = 0
    arm: str = ""
    unit: bytes = b""
    uid: str = ""


IN_NONE = Exposed()


@dataclass(frozen=True, slots=True)
class SignedAnswer:
    """A verified token: what it states, and the release's key that signed it."""

    states: Statement
    key: bytes

    def predicts(self, label: str) -> bool | None:
        """Whether the answer was this label; None where the gateway read no label from it."""
        if not self.states.label:
            return None
        return hmac.compare_digest(self.states.label, _digest(self.key, b"label", self.states.id, label))


_DECODER = msgspec.msgpack.Decoder(Statement)


class FeedbackTokens:
    """Makes and verifies tokens. Without keys of the release no answer gets a token, and no token is valid."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        """`path`: the file of the release's keys. `clock` returns Unix time."""
        self._keys, self.clock = ReleaseKeys(path, b"slipway feedback key"), clock

    def make(
        self, origin: AnswerOrigin, revision: str, tenant: str, key: str, label: str | None, exposed: Exposed = IN_NONE
    ) -> str:
        """The token of an answer of `revision`; empty without keys, or where it would be longer than MAX_TOKEN.

        `key`: of the session, "" without one. `label`: the prediction in the answer, None where none was read.
        """
        if not (known := self._keys.current()):
            return ""
        key_id, secret = next(iter(known.items()))
        id_, table = secrets.token_bytes(_ID_BYTES), table_of(origin.digest)
        written = msgspec.msgpack.encode(
            Statement(
                origin.route,
                origin.generation,
                table,
                revision,
                int(self.clock()),
                id_,
                _digest(secret, b"session", table, key) if key else b"",
                origin.assigned == revision,
                b"" if label is None else _digest(secret, b"label", id_, label),
                bool(person_of(key)),
                _digest(secret, b"client", b"", origin.client) if origin.client else b"",
                *exposed,
            )
        )
        token = ".".join((_VERSION, key_id, _text(written), _text(_mac(secret, tenant, written))))
        return token if len(token) <= MAX_TOKEN else ""

    def read(self, token: str, tenant: str) -> SignedAnswer | None:
        """What a token of this tenant states; None for any other text."""
        parts = token.split(".") if len(token) <= MAX_TOKEN and token.isascii() and "=" not in token else []
        if len(parts) != 4 or parts[0] != _VERSION or (secret := self._keys.current().get(parts[1])) is None:
            return None
        try:
            written, mac = (base64.b64decode(_padded(part), b"-_", validate=True) for part in parts[2:])
            if not hmac.compare_digest(_mac(secret, tenant, written), mac):
                return None
            return SignedAnswer(_DECODER.decode(written), secret)
        except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError):
            return None  # signed by us and not readable: by a later release

    def id_of(self, token: str) -> str:
        """The id in a token that `make` returned, in hexadecimal; "" for the empty one."""
        return _DECODER.decode(base64.b64decode(_padded(token.split(".")[2]), b"-_")).id.hex() if token else ""

    def is_expired(self, states: Statement, max_age_s: float) -> bool:
        return not -_SKEW_S <= self.clock() - states.issued_s <= max_age_s


def table_of(digest: str) -> bytes:
    """The first 8 bytes of a route's digest, which is in hexadecimal: this much of it is in a token."""
    return bytes.fromhex(digest[: 2 * _DIGEST_BYTES])


def _digest(key: bytes, about: bytes, salt: bytes, text: str) -> bytes:
    return hmac.digest(key, about + b"\0" + salt + text.encode("utf-8", "surrogatepass"), "sha256")[:_DIGEST_BYTES]


def _mac(key: bytes, tenant: str, written: bytes) -> bytes:
    return hmac.digest(key, f"token\0{tenant}\0".encode("utf-8", "surrogatepass") + written, "sha256")[:_MAC_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)
