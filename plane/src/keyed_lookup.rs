//! Values by a digest, bounded: what caches and experiments look up for a request.

use std::collections::{HashMap, VecDeque};

use sha2::{Digest as _, Sha256};

/// The digest of a key.
pub type Digest = [u8; 32];

/// SHA-256 of parts with their lengths, so that no two lists of parts have the same bytes: Python's `digest_of`.
#[derive(Clone, Debug, Default)]
pub struct Parts(Sha256);

impl Parts {
    pub fn add(&mut self, part: &[u8]) {
        self.0.update(itoa::Buffer::new().format(part.len()).as_bytes());
        self.0.update(b":");
        self.0.update(part);
    }

    pub fn digest(self) -> Digest {
        self.0.finalize().into()
    }
}

/// Values by digest. The oldest entries leave when more than `most_bytes` or `most_entries` are there.
#[derive(Debug)]
pub struct KeyedLookup<V> {
    entries: HashMap<Digest, Entry<V>>,
    /// In the order in which they were put, with the number of that time: entries that were put again have a later one.
    order: VecDeque<(u64, Digest)>,
    puts: u64,
    held_bytes: usize,
    most_bytes: usize,
    most_entries: usize,
}

#[derive(Debug)]
struct Entry<V> {
    put: u64,
    size: usize,
    value: V,
}

impl<V> KeyedLookup<V> {
    pub fn new(most_bytes: usize, most_entries: usize) -> Self {
        let (entries, order) = (HashMap::new(), VecDeque::new());
        KeyedLookup { entries, order, puts: 0, held_bytes: 0, most_bytes, most_entries }
    }

    pub fn find(&self, digest: &Digest) -> Option<&V> {
        self.entries.get(digest).map(|entry| &entry.value)
    }

    /// Puts a value of so many bytes in place of that with the same digest; returns whether there is room for it.
    pub fn put(&mut self, digest: Digest, value: V, size: usize) -> bool {
        self.remove(&digest);
        if size > self.most_bytes || self.most_entries == 0 {
            return false;
        }
        while self.held_bytes + size > self.most_bytes || self.entries.len() >= self.most_entries {
            self.drop_oldest();
        }
        self.puts += 1;
        self.entries.insert(digest, Entry { put: self.puts, size, value });
        self.order.push_back((self.puts, digest));
        self.held_bytes += size;
        true
    }

    pub fn remove(&mut self, digest: &Digest) {
        let Some(entry) = self.entries.remove(digest) else { return };
        self.held_bytes -= entry.size;
        // Places of removed entries are few: at most as many as entries.
        if self.order.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.order.retain(|(put, digest)| entries.get(digest).is_some_and(|entry| entry.put == *put));
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn drop_oldest(&mut self) {
        while let Some((put, digest)) = self.order.pop_front() {
            if self.entries.get(&digest).is_some_and(|entry| entry.put == put) {
                self.remove(&digest);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyedLookup, Parts};

    #[test]
    fn the_oldest_leaves_by_bytes_and_by_entries() {
        let mut lookup = KeyedLookup::new(10, 3);
        for n in 0..4_u8 {
            assert!(lookup.put([n; 32], n, 3));
        }
        assert_eq!((lookup.len(), lookup.held_bytes()), (3, 9));
        assert!(lookup.find(&[0; 32]).is_none());
        assert!(lookup.put([1; 32], 9, 4)); // again: it is the newest now
        assert!(lookup.find(&[2; 32]).is_some_and(|value| *value == 2));
        assert!(lookup.put([5; 32], 5, 3));
        assert!(lookup.find(&[2; 32]).is_none());
        assert_eq!(lookup.find(&[1; 32]), Some(&9));
    }

    #[test]
    fn what_is_too_long_takes_no_room() {
        let mut lookup = KeyedLookup::new(10, 3);
        assert!(lookup.put([1; 32], (), 1));
        assert!(!lookup.put([2; 32], (), 11));
        assert!(!lookup.put([1; 32], (), 11)); // and what was there is not the value of that digest
        assert!(lookup.is_empty());
        assert!(!KeyedLookup::new(10, 0).put([1; 32], (), 0));
    }

    #[test]
    fn the_order_of_many_puts_stays_bounded() {
        let mut lookup = KeyedLookup::new(100, 10);
        for n in 0..100_000_u32 {
            lookup.put([(n % 7) as u8; 32], (), 5);
        }
        assert_eq!((lookup.len(), lookup.held_bytes()), (7, 35));
        assert!(lookup.order.len() <= 2 * 7 + 17);
    }

    #[test]
    fn no_part_of_a_digest_runs_into_the_next() {
        let digest = |parts: &[&[u8]]| {
            let mut all = Parts::default();
            parts.iter().for_each(|part| all.add(part));
            all.digest()
        };
        assert_ne!(digest(&[b"a", b"b"]), digest(&[b"ab", b""]));
        assert_ne!(digest(&[b"1:a"]), digest(&[b"", b"a"]));
        assert_eq!(digest(&[b"a", b"b"]), digest(&[b"a", b"b"]));
    }
}
