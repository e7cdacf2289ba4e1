"""Hashes of full KV cache blocks: equal prefixes of one tenant and adapter have equal hashes. Pure."""

from collections.abc import Iterator, Sequence

from slipway_process.chained_hash import chained_hash, encode_fields

MAX_ROOTS = 10_000  # of tenants and adapters, that are kept


class BlockHasher:
    """Chained, keyed hashes: the hash of a block covers all tokens up to its end.

    The key is random for each process, so that no client can construct a collision.
    """

    def __init__(self, block_tokens: int, *, key: bytes, scope: str = "") -> None:
        """`scope`: revision and dtype of the model. Blocks of different scopes are never shared."""
        self._block_tokens, self._scope, self._key = block_tokens, scope, key
        self._roots: dict[tuple[str, str], bytes] = {}

    def root_hash(self, tenant: str, adapter: str = "") -> bytes:
        """The parent of the first block of this tenant's sequences with this adapter: no others share their blocks.

        `adapter`: the digest of its files, which the keys and values depend on.
        """
        whose = tenant, adapter
        if whose not in self._roots:
            if len(self._roots) >= MAX_ROOTS:
                self._roots.clear()
            fields = {"scope": self._scope, "tenant": tenant, "adapter": adapter}
            self._roots[whose] = self._hash(b"", encode_fields(fields))
        return self._roots[whose]

    def hash_blocks(self, parent: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
        """One hash for each full block of `tokens`."""
        size = self._block_tokens
        for start in range(0, len(tokens) - size + 1, size):
            words = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + size])
            parent = self._hash(parent, words)
            yield parent

    def _hash(self, parent: bytes, block: bytes) -> bytes:
        return chained_hash(parent, block, self._key)
