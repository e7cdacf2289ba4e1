//! Deterministic weighted choice: the place of a sticky key in a split.

use xxhash_rust::xxh64::Xxh64;

/// Index of the first weight whose running sum (percent) exceeds the key's position; None when none does.
///
/// Integers only: `u < cumulative` is compared as `hash * 100 < cumulative * 2^64`, so no share is lost to rounding.
pub fn choose(weights: impl IntoIterator<Item = i64>, salt: &[u8], key: &[u8]) -> Option<usize> {
    let position = i128::from(hash(&[salt, b"\0", key])) * 100;
    let mut cumulative = 0_i128;
    weights.into_iter().position(|weight| {
        cumulative = cumulative.saturating_add(i128::from(weight));
        position < cumulative.saturating_mul(1 << 64)
    })
}

/// Four digits that identify an endpoint without revealing its address.
///
/// Two endpoints may share a tag: any of them must work.
pub fn tag(url: &str) -> String {
    format!("{:04x}", hash(&[url.as_bytes()]) & 0xFFFF)
}

/// Rendezvous rank of a node for a key: the same key prefers the same node while both live.
pub fn affinity(node: &str, key: &[u8]) -> u64 {
    hash(&[node.as_bytes(), b"\0", key])
}

/// XXH64 of parts that follow one another.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = Xxh64::new(0);
    for part in parts {
        hasher.update(part);
    }
    hasher.digest()
}
