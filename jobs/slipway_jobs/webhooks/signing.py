"""Signatures of the Standard Webhooks scheme, with a secret for each tenant (pure)."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """The secrets in `whsec_BASE64`, or in two of these with a comma while the secret is rotated.

    Raises:
        ValueError: one of them is invalid.
    """
    found = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        try:
            secret = base64.b64decode(part.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if not part.startswith(_PREFIX) or not _MIN_BYTES <= len(secret) <= _MAX_BYTES:
            raise ValueError(f"write {_PREFIX} and {_MIN_BYTES} to {_MAX_BYTES} bytes in base64")
        found.append(secret)
    return tuple(found)


def secret_of(secret: bytes, tenant: str) -> bytes:
    """A tenant's own secret: with one secret for all, each tenant could sign webhooks of the others."""
    return hmac.digest(secret, b"slipway-jobs webhooks\0" + tenant.encode(), hashlib.sha256)


def shown(secret: bytes) -> str:
    return _PREFIX + base64.b64encode(secret).decode()


def sign(secrets: Sequence[bytes], event_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers of a webhook, with a signature by each secret: a receiver may still have the older one."""
    signed = f"{event_id}.{timestamp_s}.".encode() + body
    made = (base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{one}" for one in made),
    }
