//! Bytes by a digest, bounded: what caches and experiments look up for a request.

use std::collections::{HashMap, VecDeque};

/// The digest of a key.
pub type Digest = [u8; 32];

/// Bytes by digest. The oldest entries leave when more than `most_bytes` or `most_entries` are there.
#[derive(Debug)]
pub struct KeyedLookup {
    entries: HashMap<Digest, (u64, Box<[u8]>)>,
    /// In the order in which they were put, with the number of that time: entries that were put again have a later one.
    order: VecDeque<(u64, Digest)>,
    puts: u64,
    held_bytes: usize,
    most_bytes: usize,
    most_entries: usize,
}

impl KeyedLookup {
    pub fn new(most_bytes: usize, most_entries: usize) -> Self {
        let (entries, order) = (HashMap::new(), VecDeque::new());
        KeyedLookup { entries, order, puts: 0, held_bytes: 0, most_bytes, most_entries }
    }

    pub fn find(&self, digest: &Digest) -> Option<&[u8]> {
        self.entries.get(digest).map(|(_, bytes)| bytes.as_ref())
    }

    /// Puts bytes in place of those with the same digest; returns whether there is room for them.
    pub fn put(&mut self, digest: Digest, bytes: &[u8]) -> bool {
        self.remove(&digest);
        if bytes.len() > self.most_bytes || self.most_entries == 0 {
            return false;
        }
        while self.held_bytes + bytes.len() > self.most_bytes || self.entries.len() >= self.most_entries {
            self.drop_oldest();
        }
        self.puts += 1;
        self.entries.insert(digest, (self.puts, bytes.into()));
        self.order.push_back((self.puts, digest));
        self.held_bytes += bytes.len();
        true
    }

    pub fn remove(&mut self, digest: &Digest) {
        let Some((_, bytes)) = self.entries.remove(digest) else { return };
        self.held_bytes -= bytes.len();
        // Places of removed entries are few: at most as many as entries.
        if self.order.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.order.retain(|(put, digest)| entries.get(digest).is_some_and(|entry| entry.0 == *put));
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
            if self.entries.get(&digest).is_some_and(|entry| entry.0 == put) {
                self.remove(&digest);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::KeyedLookup;

    #[test]
    fn the_oldest_leaves_by_bytes_and_by_entries() {
        let mut lookup = KeyedLookup::new(10, 3);
        for n in 0..4_u8 {
            assert!(lookup.put([n; 32], &[n; 3]));
        }
        assert_eq!((lookup.len(), lookup.held_bytes()), (3, 9));
        assert!(lookup.find(&[0; 32]).is_none());
        assert!(lookup.put([1; 32], &[9; 4])); // again: it is the newest now
        assert!(lookup.find(&[2; 32]).is_some_and(|bytes| bytes == [2; 3]));
        assert!(lookup.put([5; 32], &[5; 3]));
        assert!(lookup.find(&[2; 32]).is_none());
        assert_eq!(lookup.find(&[1; 32]), Some([9; 4].as_slice()));
    }

    #[test]
    fn what_is_too_long_takes_no_room() {
        let mut lookup = KeyedLookup::new(10, 3);
        assert!(lookup.put([1; 32], b"1"));
        assert!(!lookup.put([2; 32], &[0; 11]));
        assert!(!lookup.put([1; 32], &[0; 11])); // and what was there is not the value of that digest
        assert!(lookup.is_empty());
        assert!(!KeyedLookup::new(10, 0).put([1; 32], b""));
    }

    #[test]
    fn the_order_of_many_puts_stays_bounded() {
        let mut lookup = KeyedLookup::new(100, 10);
        for n in 0..100_000_u32 {
            lookup.put([(n % 7) as u8; 32], b"12345");
        }
        assert_eq!((lookup.len(), lookup.held_bytes()), (7, 35));
        assert!(lookup.order.len() <= 2 * 7 + 17);
    }
}
