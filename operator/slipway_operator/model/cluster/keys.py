"""The release's keys: their format, the keys derived from them, and their rotation.

Gateways sign with the first key, and servers accept all of them. Both read a changed Secret minutes late, so servers
get a new key before it signs, and keep the former one for a while: each step waits until the last one is everywhere.
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
PROPAGATION_S = 900.0  # between two steps: kubelets bring a changed Secret within a minute or two
MIN_ROTATION_S = 3600.0

_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


class UnreadableKeys(ValueError):
    """The content of the Secret is not what the operator writes."""


class Key(msgspec.Struct, frozen=True):
    """`since`: Unix seconds of its last step, when it was added or became the first."""

    id: str
    key: str  # KEY_BYTES, base64url
    since: float = msgspec.field(name="from")


class _Content(msgspec.Struct):
    keys: list[Key]


@dataclass(frozen=True, slots=True)
class Derived:
    """A key of one namespace: not valid in another one, and the release's key cannot be derived from it."""

    id: str
    key: bytes


def new_key(entropy: bytes, now: float) -> Key:
    """A new key. `entropy`: KEY_BYTES that cannot be guessed, and 4 more for the id."""
    return Key(entropy[KEY_BYTES:].hex(), base64.urlsafe_b64encode(entropy[:KEY_BYTES]).decode(), now)


def advance(keys: Sequence[Key], now: float, rotation_s: float, fresh: Key) -> tuple[Key, ...]:
    """The keys to write now, at most one step further; the same ones where no step is due.

    `fresh`: the key to add where one is due. Of two keys, the one with the later `since` is newer.
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
    """A Secret's `data`: the keys, and the operator's tokens in the same order."""
    tokens = "\n".join(operator_token(key) for key in keys)
    return {KEYS: _base64(msgspec.json.encode(_Content(list(keys)))), TOKEN: _base64(tokens.encode())}


def operator_token(key: Key) -> str:
    """The token by which gateways authenticate the operator."""
    return hmac.digest(_bytes(key), b"slipway operator token", "sha256").hex()


def derive(keys: Sequence[Key], namespace: str) -> tuple[Derived, ...]:
    """The keys of a namespace, as docs/contracts.md specifies; gateways derive the same ones."""
    purpose = b"slipway tenant key\0" + namespace.encode()
    return tuple(Derived(key.id, hmac.digest(_bytes(key), purpose, "sha256")) for key in keys)


def render_derived(keys: Sequence[Derived]) -> dict[str, str]:
    """The `data` of a namespace's Secret."""
    content: dict[str, Any] = {
        "keys": [{"id": key.id, "key": base64.urlsafe_b64encode(key.key).decode()} for key in keys]
    }
    return {NAMESPACE_KEYS: _base64(msgspec.json.encode(content))}


def _bytes(key: Key) -> bytes:
    return base64.urlsafe_b64decode(key.key)


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode()
