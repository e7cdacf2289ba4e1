"""API keys, as gateways read them: `slw_<id>_<secret>_<checksum>`; pure. docs/contracts.md has the format."""

import hmac
import zlib

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH, SECRET_LENGTH, CHECKSUM_LENGTH = 8, 43, 6
ENTROPY_BYTES = 38  # 32 for the secret, 6 for the id
MIN_PEPPER_BYTES = 32


def make_key(entropy: bytes) -> str:
    """A new key. `entropy`: ENTROPY_BYTES that cannot be guessed."""
    secret, key_id = (int.from_bytes(part, "big") for part in (entropy[:32], entropy[32:]))
    text = f"slw_{_base62(key_id % 62**ID_LENGTH, ID_LENGTH)}_{_base62(secret, SECRET_LENGTH)}"
    return f"{text}_{_base62(zlib.crc32(text.encode()), CHECKSUM_LENGTH)}"


def id_of(key: str) -> str:
    """The id in a key, which is not secret."""
    return key.split("_")[1]


def hash_key(key: str, pepper: bytes) -> str:
    """The hash of a key, which a Tenant has in place of the key."""
    return "hmac-sha256:" + hmac.digest(pepper, key.encode(), "sha256").hex()


def _base62(number: int, length: int) -> str:
    digits = ""
    while len(digits) < length:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
