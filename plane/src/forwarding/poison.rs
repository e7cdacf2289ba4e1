//! What the fast lane knows of requests in flight at an engine that died: Python blames requests, and says which.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Requests that were answered, of all clients together.
pub const MAX_ANSWERED: usize = 4096;

/// Client, path and length of the body of a request: what identifies most requests without a hash of the body.
pub type Key = (String, String, usize);

/// Requests that are blamed, and requests that were answered here.
#[derive(Debug)]
pub struct Suspects {
    blamed: HashSet<Key>,
    answered: HashSet<u64>,
    by_client: HashMap<Arc<str>, VecDeque<u64>>,
    /// Keyed by the process: no client can choose bodies that collide.
    hasher: RandomState,
}

impl Default for Suspects {
    fn default() -> Self {
        let hasher = RandomState::new();
        Suspects { blamed: HashSet::new(), answered: HashSet::new(), by_client: HashMap::new(), hasher }
    }
}

impl Suspects {
    /// Replaces the requests that are blamed.
    pub fn blame(&mut self, keys: HashSet<Key>) {
        self.blamed = keys;
    }

    /// Whether a request may be one that is blamed: Python looks at its body.
    pub fn may_be_blamed(&self, client: &str, path: &str, length: usize) -> bool {
        !self.blamed.is_empty() && self.blamed.contains(&(client.to_owned(), path.to_owned(), length))
    }

    /// A response was sent to its end.
    pub fn completed(&mut self, client: &Arc<str>, path: &str, body: &[u8]) {
        let name = self.hasher.hash_one((client.as_ref(), path, body));
        if !self.answered.insert(name) {
            return;
        }
        self.by_client.entry(client.clone()).or_default().push_back(name);
        if self.answered.len() > MAX_ANSWERED {
            self.forget_some();
        }
    }

    /// Each client keeps at most half as many as the one with most has, the latest ones: rarely done, and quickly.
    fn forget_some(&mut self) {
        let most = self.by_client.values().map(VecDeque::len).max().unwrap_or(0) / 2;
        let Suspects { by_client, answered, .. } = self;
        by_client.retain(|_, names| {
            let gone = names.len().saturating_sub(most);
            for name in names.drain(..gone) {
                answered.remove(&name);
            }
            !names.is_empty()
        });
    }

    /// Whether the same bytes, of the same client, were answered here.
    pub fn answered(&self, client: &str, path: &str, body: &[u8]) -> bool {
        self.answered.contains(&self.hasher.hash_one((client, path, body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_with_most_forgets_first() {
        let mut suspects = Suspects::default();
        let (large, small): (Arc<str>, Arc<str>) = ("large".into(), "small".into());
        for n in 0..10_u8 {
            suspects.completed(&small, "/", &[n]);
        }
        for n in 0..=MAX_ANSWERED {
            suspects.completed(&large, "/", format!("{n}").as_bytes());
        }
        assert!(suspects.answered.len() <= MAX_ANSWERED);
        assert!((0..10_u8).all(|n| suspects.answered("small", "/", &[n])));
        assert!(!suspects.answered("large", "/", b"0"));
        assert!(suspects.answered("large", "/", format!("{MAX_ANSWERED}").as_bytes()));
    }

    #[test]
    fn a_request_of_the_same_client_path_and_length_may_be_blamed() {
        let mut suspects = Suspects::default();
        suspects.blame(HashSet::from([("c".to_owned(), "/p".to_owned(), 3)]));
        assert!(suspects.may_be_blamed("c", "/p", 3));
        assert!(!suspects.may_be_blamed("c", "/p", 4) && !suspects.may_be_blamed("d", "/p", 3));
    }
}
