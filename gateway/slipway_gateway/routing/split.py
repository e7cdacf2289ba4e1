"""Deterministic weighted choice: the place of a sticky key in a split (pure)."""

from collections.abc import Sequence

from xxhash import xxh64_intdigest

_SPAN = 1 << 64


def choose(weights: Sequence[int], salt: str, key: str) -> int | None:
    """Index of the first weight whose running sum (percent) exceeds the key's position; None when none does.

    Integers only: `u < cumulative` is compared as `hash * 100 < cumulative * 2^64`, so no share is lost to rounding.
    """
    position = xxh64_intdigest(f"{salt}\0{key}".encode("utf-8", "surrogatepass")) * 100
    cumulative = 0
    for index, weight in enumerate(weights):
        cumulative += weight
        if position < cumulative * _SPAN:
            return index
    return None


def tag(url: str) -> str:
    """Four digits that identify an endpoint without revealing its address.

    Two endpoints may share a tag: any of them must work.
    """
    return f"{xxh64_intdigest(url.encode()) & 0xFFFF:04x}"


def affinity(node: str, key: str) -> int:
    """Rendezvous rank of a node for a key: the same key prefers the same node while both live."""
    return xxh64_intdigest(f"{node}\0{key}".encode("utf-8", "surrogatepass"))
