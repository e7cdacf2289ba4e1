"""Tenants and API keys for tests."""

import secrets

from slipway_gateway.identity import api_keys
from slipway_gateway.identity.tenants import KeyHash, KnownTenant

PEPPER = b"p" * 32


def make_key(key_id: str = "k7Qm2x", secret: str = "") -> str:
    """A key as the command line makes it."""
    begin = f"slw_{key_id}_{secret or api_keys.base62(secrets.randbits(256), api_keys.SECRET_LENGTH)}"
    return f"{begin}_{api_keys.checksum(begin)}"


def entry(key: str, expires_s: float | None = None, pepper: bytes = PEPPER) -> KeyHash:
    """What a Tenant has of a key."""
    return KeyHash(key.split("_")[1], api_keys.digest(key, pepper), expires_s)


def tenant(name: str, *keys: str, models: tuple[str, ...] = ("*",), disabled: bool = False) -> KnownTenant:
    return KnownTenant(name, models, disabled, keys=tuple(entry(key) for key in keys))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
