"""API keys: `slw_<id>_<secret>_<checksum>`, as `slipway keys create` makes them (pure).

The prefix lets scanners of secrets find keys, and a mistyped key is recognized by its checksum alone.
"""

import hmac
import re
import zlib

PREFIX = "slw_"
HASH_PREFIX = "hmac-sha256:"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_LENGTH = 43  # digits of base 62 for 256 bits
CHECKSUM_LENGTH = 6  # for the 32 bits of CRC-32
MIN_PEPPER_BYTES = 32

_KEY = re.compile(rf"slw_([A-Za-z0-9]{{6,32}})_[A-Za-z0-9]{{{SECRET_LENGTH}}}_([A-Za-z0-9]{{{CHECKSUM_LENGTH}}})")


def key_id(key: str) -> str:
    """The id in a key; empty when it is no key, or mistyped."""
    parts = _KEY.fullmatch(key)
    if parts is None or checksum(key[: -CHECKSUM_LENGTH - 1]) != parts[2]:
        return ""
    return parts[1]


def digest(key: str, pepper: bytes) -> str:
    """The hash of a key, as a Tenant has it: a prefix, and HMAC-SHA-256 with the pepper in hexadecimal."""
    return HASH_PREFIX + hmac.digest(pepper, key.encode("utf-8", "surrogatepass"), "sha256").hex()


def checksum(text: str) -> str:
    """The last part of a key, from the text before it: its CRC-32 in base 62."""
    return base62(zlib.crc32(text.encode("ascii")), CHECKSUM_LENGTH)


def base62(number: int, length: int) -> str:
    digits = ""
    while len(digits) < length:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
