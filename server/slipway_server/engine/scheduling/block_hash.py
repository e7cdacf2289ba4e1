"""Hashes of full KV cache blocks: equal prefixes of one tenant have equal hashes. Pure."""

from collections.abc import Iterator, Sequence

from slipway_process.chained_hash import chained_hash, encode_fields

MAX_TENANTS = 10_000  # whose root hashes are kept


class BlockHasher:
    """Chained, keyed hashes: the hash of a block covers all tokens up to its end.

    The key is random for each process, so that no client can construct a collision.
    """

    def __init__(self, block_tokens: int, *, key: bytes, scope: str = "") -> None:
        """`scope`: revision, dtype and adapter of the model. Blocks of different scopes are never shared."""
        self._block_tokens, self._scope, self._key = block_tokens, scope, key
        self._roots: dict[str, bytes] = {}

    def root_hash(self, tenant: str) -> bytes:
        """The parent of the first block of this tenant's sequences: tenants share no blocks."""
        if tenant not in self._roots:
            if len(self._roots) >= MAX_TENANTS:
                self._roots.clear()
            self._roots[tenant] = self._hash(b"", encode_fields({"scope": self._scope, "tenant": tenant}))
        return self._roots[tenant]

    def hash_blocks(self, parent: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
        """One hash for each full block of `tokens`."""
        size = self._block_tokens
        for start in range(0, len(tokens) - size + 1, size):
            words = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + size])
            parent = self._hash(parent, words)
            yield parent

    def _hash(self, parent: bytes, block: bytes) -> bytes:
        return chained_hash(parent, block, self._key)
