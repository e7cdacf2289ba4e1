"""The release's keys: their format, the keys derived from them, and their rotation.

Gateways sign with the first key, and servers accept all of them. Both read a changed Secret minutes late, so servers
get a new key before gateways sign with it, and keep the former one for a while: each step of the rotation waits until
all processes have the result of the previous one.
"""

import base64
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

KEYS, TOKEN = "tenant.json", "operator-token"  # data fields of the release's Secret
NAMESPACE_KEYS = "keys.json"  # data field of a namespace's Secret
KEY_BYTES = 32
PROPAGATION_S = 900.0  # between two steps: kubelets update a mounted Secret within a minute or two
MIN_ROTATION_S = 3600.0

_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


class UnreadableKeys(ValueError):
    """The content of the Secret is not what the operator writes."""


class Key(msgspec.Struct, frozen=True):
    """A key of the release. `since`: Unix seconds when it was added or became the first, whichever is later."""

    id: str
    key: str  # KEY_BYTES, base64url
    since: float = msgspec.field(name="from")


class _Content(msgspec.Struct):
    keys: list[Key]


@dataclass(frozen=True, slots=True)
class Derived:
    """A key of one namespace: it is valid only there, and does not reveal the release's key."""

    id: str
    key: bytes


def new_key(entropy: bytes, now: float) -> Key:
    """Return a new key. `entropy`: KEY_BYTES random bytes for the key, and 4 more for the id."""
    return Key(entropy[KEY_BYTES:].hex(), base64.urlsafe_b64encode(entropy[:KEY_BYTES]).decode(), now)


def advance(keys: Sequence[Key], now: float, rotation_s: float, fresh: Key) -> tuple[Key, ...]:
    """Return the keys after the next step of rotation; `keys` unchanged when none is due.

    The steps: add `fresh`, make it the first, remove the former one. Of two keys, the one with the later `since` is
    newer.
    """
    if not keys:
        return (fresh,)
    # A clock that was ahead must not delay the next step by more than one interval.
    keys = tuple(replace_since(key, min(key.since, now)) for key in keys[:2])
    first = keys[0]
    if len(keys) == 1:
        return (first, replace_since(fresh, now)) if now - first.since >= max(rotation_s, MIN_ROTATION_S) else keys
    second = keys[1]
    if now - max(first.since, second.since) < PROPAGATION_S:
        return keys
    return (first,) if second.since < first.since else (replace_since(second, now), first)


def replace_since(key: Key, since: float) -> Key:
    return msgspec.structs.replace(key, since=since)


def parse(data: dict[str, str]) -> tuple[Key, ...]:
    """The keys in a Secret's `data`.

    Raises:
        UnreadableKeys: the message names the problem and contains no key.
    """
    try:
        text = base64.b64decode(data.get(KEYS) or "", validate=True)
        keys = tuple(msgspec.json.decode(text, type=_Content).keys)[:2] if text else ()
        bad = [key.id for key in keys if not _ID.fullmatch(key.id) or len(_bytes(key)) < KEY_BYTES]
    except (ValueError, msgspec.DecodeError) as error:
        raise UnreadableKeys(f"{KEYS} is not what the operator writes ({type(error).__name__})") from None
    if bad or len({key.id for key in keys}) < len(keys):
        raise UnreadableKeys(f"{KEYS} has a key that is too short, or an id that is no id or is there twice")
    return keys


def render(keys: Sequence[Key]) -> dict[str, str]:
    """Return the `data` of the release's Secret: the keys, and a token of the operator for each, in the same order."""
    tokens = "\n".join(operator_token(key) for key in keys)
    return {KEYS: _base64(msgspec.json.encode(_Content(list(keys)))), TOKEN: _base64(tokens.encode())}


def operator_token(key: Key) -> str:
    """Return the hexadecimal bearer token by which gateways authenticate the operator."""
    return hmac.digest(_bytes(key), b"slipway operator token", "sha256").hex()


def derive(keys: Sequence[Key], namespace: str) -> tuple[Derived, ...]:
    """Derive the keys of a namespace as docs/contracts.md specifies; gateways derive the same keys."""
    purpose = b"slipway tenant key\0" + namespace.encode()
    return tuple(Derived(key.id, hmac.digest(_bytes(key), purpose, "sha256")) for key in keys)


def render_derived(keys: Sequence[Derived]) -> dict[str, str]:
    """Return the `data` of a namespace's Secret."""
    content: dict[str, Any] = {
        "keys": [{"id": key.id, "key": base64.urlsafe_b64encode(key.key).decode()} for key in keys]
    }
    return {NAMESPACE_KEYS: _base64(msgspec.json.encode(content))}


def _bytes(key: Key) -> bytes:
    return base64.urlsafe_b64decode(key.key)


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode()
