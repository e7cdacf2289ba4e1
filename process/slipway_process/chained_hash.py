"""Chained, keyed hashes of blocks: the hash of a block covers everything up to its end. Pure."""

import hashlib

HASH_BYTES = 16


def chained_hash(parent: bytes, block: bytes, key: bytes = b"") -> bytes:
    """HASH_BYTES of BLAKE2b over the hash of the block before and the block. `key`: at most 64 bytes."""
    return hashlib.blake2b(parent + block, digest_size=HASH_BYTES, key=key).digest()


def encode_fields(fields: dict[str, str]) -> bytes:
    """Names and values with their lengths, so that no two sets of fields have the same encoding."""
    parts = (part.encode("utf-8", "surrogatepass") for field in sorted(fields.items()) for part in field)
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
