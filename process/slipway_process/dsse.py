"""Signs and verifies DSSE envelopes (https://github.com/secure-systems-lab/dsse) by Ed25519, or by ECDSA with P-256.

The id of a key is the SHA-256 of its public key as SubjectPublicKeyInfo in DER, in hexadecimal digits. It only helps to
find the key: which keys count is the verifier's choice.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

PrivateKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

MOST_KEY_BYTES = 65_536  # of a file of keys
MOST_SIGNATURES = 16  # of an envelope
KINDS = "an Ed25519 key, or an ECDSA key with the curve P-256"
_ECDSA = ec.ECDSA(hashes.SHA256())
_PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


class UnusableKey(ValueError):
    """A text has no key that can be used. The message has no part of it."""


class NotVerified(ValueError):
    """An envelope is none, or none of the keys signed it."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A signed payload. Nothing of it is verified."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]  # the id of the key, which may be empty, and the signature

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Of those that claim to have signed it."""
        return tuple(key_id for key_id, _ in self.signatures)


def private_key(pem: bytes) -> PrivateKey:
    """The key in a PEM file.

    Raises:
        UnusableKey: it is none, has a password, or is of another kind.
    """
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableKey(f"it is no private key in PEM without a password: write {KINDS}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey) and not _is_p256(key):
        raise UnusableKey(f"its key is of another kind: write {KINDS}")
    assert isinstance(key, PrivateKey)
    return key


def public_keys(pem: bytes) -> tuple[PublicKey, ...]:
    """The keys in a PEM file, of which there may be several: old ones and new ones.

    Raises:
        UnusableKey: it has none, or one that is no public key of these kinds.
    """
    blocks = _PUBLIC.findall(pem)
    if not blocks:
        raise UnusableKey("it has no public key in PEM, which begins with -----BEGIN PUBLIC KEY-----")
    return tuple(map(_public_key, blocks))


def key_id(key: PublicKey) -> str:
    """The id of a key."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def sign(payload_type: str, payload: bytes, key: PrivateKey) -> str:
    """The envelope of a payload, as JSON text without spaces."""
    signed = _encoded(payload_type, payload)
    signature = key.sign(signed) if isinstance(key, ed25519.Ed25519PrivateKey) else key.sign(signed, _ECDSA)
    content = {
        "payloadType": payload_type,
        "payload": _base64(payload),
        "signatures": [{"keyid": key_id(key.public_key()), "sig": _base64(signature)}],
    }
    return json.dumps(content, separators=(",", ":"))


def read(text: str) -> Envelope:
    """The envelope in a JSON text; nothing of it is verified.

    Raises:
        NotVerified: the text is no envelope.
    """
    try:
        content = json.loads(text)
        listed = content["signatures"]
        if not isinstance(listed, list) or len(listed) > MOST_SIGNATURES:
            raise NotVerified(f"its signatures are no list of at most {MOST_SIGNATURES}")
        signatures = tuple((str(one.get("keyid") or ""), _bytes(one["sig"])) for one in listed)
        return Envelope(_text(content["payloadType"]), _bytes(content["payload"]), signatures)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise error if isinstance(error, NotVerified) else NotVerified("it is no DSSE envelope") from error


def verify(envelope: Envelope, payload_type: str, keys: Sequence[PublicKey]) -> str:
    """The id of the first of the keys that signed the envelope.

    Raises:
        NotVerified: none of them did, or the payload is of another type.
    """
    if envelope.payload_type != payload_type:
        raise NotVerified(f"its payload is not of the type {payload_type}")
    signed = _encoded(envelope.payload_type, envelope.payload)
    # An id is not authenticated, so each signature is tried with each key.
    for key in keys:
        if any(_has_signed(key, signature, signed) for _, signature in envelope.signatures):
            return key_id(key)
    raise NotVerified("none of the given keys signed it, or it was changed since")


def _encoded(payload_type: str, payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding of the type and the payload."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _has_signed(key: PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, signed)
        else:
            key.verify(signature, signed, _ECDSA)
    except InvalidSignature:
        return False
    return True


def _public_key(pem: bytes) -> PublicKey:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableKey("a block of it is no public key") from error
    if not isinstance(key, ed25519.Ed25519PublicKey) and not _is_p256(key):
        raise UnusableKey(f"one of its keys is of another kind: write {KINDS}")
    assert isinstance(key, PublicKey)
    return key


def _is_p256(key: Any) -> bool:
    is_curve = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    return is_curve and isinstance(key.curve, ec.SECP256R1)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    return value


def _bytes(value: Any) -> bytes:
    """Base64 of either alphabet, as envelopes may have it."""
    try:
        return base64.b64decode(_text(value).replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error as error:
        raise TypeError("it is no base64") from error
