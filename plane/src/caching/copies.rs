//! Copies of kept responses, by the bytes of the requests that get them. Python puts them here when it answers a request
//! with one, and takes them away when the response leaves its cache.
//!
//! Which requests are equal is Python's to say. Here a request gets a copy only if it has the very bytes of one that got
//! the same response from Python: path, headers and body as its server would get them, tenant, route and revision.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::keyed_lookup::{Digest, KeyedLookup, Parts};
use crate::quotas::usage::Usage;
use crate::routing::router::base_revision;
use crate::wire::headers::{first_value, line, Headers};

/// Headers of a request on which its response depends: `FORMATS` of Python's `caching/entry.py`, in lower case.
const FORMATS: [&str; 4] = ["accept", "content-type", "content-encoding", "inference-header-content-length"];
/// Copies that may be there, however small they are.
const MAX_COPIES: usize = 65_536;

/// What the owner of a route says about its cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheRule {
    /// Of the route's object, which a new one of the same name has not.
    pub uid: String,
    pub ttl_s: f64,
    /// Whether tenants get responses to requests of each other.
    pub is_shared: bool,
}

/// Where a response has its own id: bytes of it, and where they begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnId {
    pub length: usize,
    pub begins: Vec<usize>,
}

/// A whole response with status 200. `stored_s`: Unix time. `expires_s`: on Python's clock.
#[derive(Debug)]
pub struct KeptResponse {
    pub revision: String,
    /// Header lines that each copy has.
    pub head: Vec<u8>,
    pub has_server: bool,
    pub body: Vec<u8>,
    pub id: OwnId,
    /// None: its server reported none.
    pub usage: Option<Usage>,
    pub stored_s: f64,
    pub expires_s: f64,
    is_used: AtomicBool,
}

impl KeptResponse {
    pub fn new(revision: String, headers: &[(String, String)], body: Vec<u8>, id: OwnId) -> Self {
        let mut head = Vec::new();
        headers.iter().for_each(|(name, value)| line(&mut head, name, value.as_bytes()));
        let has_server = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("server"));
        let (usage, is_used) = (None, AtomicBool::new(false));
        KeptResponse { revision, head, has_server, body, id, usage, stored_s: 0.0, expires_s: 0.0, is_used }
    }

    /// Its age in seconds. `unix_s`: now.
    pub fn age_s(&self, unix_s: f64) -> f64 {
        (unix_s - self.stored_s).max(0.0)
    }

    /// Appends the body with another id in the place of its own. `digits`: hexadecimal ones, 32 of them.
    pub fn write_body(&self, out: &mut Vec<u8>, digits: &[u8]) {
        let begin = out.len();
        out.extend_from_slice(&self.body);
        for at in &self.id.begins {
            let places = begin + at..begin + at + self.id.length;
            for (place, digit) in out.get_mut(places).into_iter().flatten().zip(digits.iter().cycle()) {
                if *place != b'-' {
                    *place = *digit;
                }
            }
        }
    }
}

/// What of a request decides which copy it gets, but for its revision.
///
/// `scope`: the pseudonym of its tenant. `path`, `listed`, `body`: as its server would get them.
pub fn parts_of(rule: &CacheRule, tenant: &str, route: &str, [path, body]: [&[u8]; 2], listed: Headers<'_>) -> Parts {
    let mut parts = Parts::default();
    if rule.is_shared {
        parts.add(b"shared");
    } else {
        parts.add(&[b"tenant ", tenant.as_bytes()].concat());
    }
    for part in [route.as_bytes(), rule.uid.as_bytes(), path] {
        parts.add(part);
    }
    FORMATS.iter().for_each(|name| parts.add(first_value(listed, name).unwrap_or_default()));
    parts.add(body);
    parts
}

/// The digest of a request that goes to a revision. Baseline pods run the same as their revision.
pub fn digest_at(mut parts: Parts, revision: &str) -> Digest {
    parts.add(base_revision(revision).as_bytes());
    parts.digest()
}

/// All copies. Python says which of them leave; the bounds here are those that it keeps to.
#[derive(Debug)]
pub struct Copies {
    lookup: KeyedLookup<Arc<KeptResponse>>,
    /// Those that requests got since Python looked last.
    used: Vec<Digest>,
}

impl Default for Copies {
    fn default() -> Self {
        Copies { lookup: KeyedLookup::new(0, 0), used: Vec::new() }
    }
}

impl Copies {
    /// Forgets all, and holds at most so many bytes from now on.
    pub fn hold(&mut self, most_bytes: usize) {
        *self = Copies { lookup: KeyedLookup::new(most_bytes, MAX_COPIES), used: Vec::new() };
    }

    pub fn find(&self, digest: &Digest) -> Option<Arc<KeptResponse>> {
        self.lookup.find(digest).cloned()
    }

    pub fn put(&mut self, digest: Digest, one: KeptResponse, size: usize) -> bool {
        self.lookup.put(digest, Arc::new(one), size)
    }

    pub fn remove(&mut self, digest: &Digest) {
        self.lookup.remove(digest);
    }

    /// A request got this one.
    pub fn note_use(&mut self, digest: &Digest, one: &KeptResponse) {
        if !one.is_used.swap(true, Ordering::SeqCst) {
            self.used.push(*digest);
        }
    }

    /// Those that were used since the last call.
    pub fn take_used(&mut self) -> Vec<Digest> {
        let used = std::mem::take(&mut self.used);
        let kept = used.iter().filter_map(|digest| self.lookup.find(digest));
        kept.for_each(|one| one.is_used.store(false, Ordering::SeqCst));
        used
    }

    pub fn held_bytes(&self) -> usize {
        self.lookup.held_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(body: &[u8], id: OwnId) -> KeptResponse {
        KeptResponse::new("r".to_owned(), &[("Content-Type".to_owned(), "a/b".to_owned())], body.to_vec(), id)
    }

    fn digest(rule: &CacheRule, tenant: &str, route: &str, path: &[u8], body: &[u8], revision: &str) -> Digest {
        let listed = [httparse::Header { name: "ACCEPT", value: b"a/b" }];
        digest_at(parts_of(rule, tenant, route, [path, body], &listed), revision)
    }

    #[test]
    fn every_part_of_a_request_changes_its_digest() {
        let rule = CacheRule { uid: "u".to_owned(), ttl_s: 1.0, is_shared: false };
        let other = CacheRule { uid: "v".to_owned(), ..rule.clone() };
        let all = [
            digest(&rule, "t", "n/r", b"/p", b"{}", "r1"),
            digest(&other, "t", "n/r", b"/p", b"{}", "r1"),
            digest(&rule, "", "n/r", b"/p", b"{}", "r1"),
            digest(&rule, "t", "n/s", b"/p", b"{}", "r1"),
            digest(&rule, "t", "n/r", b"/q", b"{}", "r1"),
            digest(&rule, "t", "n/r", b"/p", b"{ }", "r1"),
            digest(&rule, "t", "n/r", b"/p", b"{}", "r2"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
        assert_eq!(all[0], digest(&rule, "t", "n/r", b"/p", b"{}", "r1-baseline"));
        let shared = CacheRule { is_shared: true, ..rule };
        assert_eq!(digest(&shared, "t", "n/r", b"/p", b"{}", "r1"), digest(&shared, "u", "n/r", b"/p", b"{}", "r1"));
    }

    #[test]
    fn a_copy_has_an_id_of_its_own() {
        let one = kept(b"{\"id\":\"c-a1-b2\",\"x\":\"c-a1-b2\"}", OwnId { length: 5, begins: vec![9, 23] });
        let mut out = b"head".to_vec();
        one.write_body(&mut out, b"0123456789");
        assert_eq!(out, b"head{\"id\":\"c-01-34\",\"x\":\"c-01-34\"}");
        let mut same = Vec::new();
        kept(b"short", OwnId { length: 9, begins: vec![3] }).write_body(&mut same, b"0123");
        assert_eq!(same, b"short", "places beyond the end are none");
    }

    #[test]
    fn what_was_used_is_listed_once_until_python_looks() {
        let mut copies = Copies::default();
        assert!(!copies.put([1; 32], kept(b"a", OwnId::default()), 1), "nothing is held before Python says so");
        copies.hold(10);
        assert!(copies.put([1; 32], kept(b"a", OwnId::default()), 4));
        let one = copies.find(&[1; 32]).unwrap();
        for _ in 0..3 {
            copies.note_use(&[1; 32], &one);
        }
        assert_eq!((copies.take_used(), copies.take_used()), (vec![[1; 32]], vec![]));
        copies.note_use(&[1; 32], &one);
        copies.remove(&[1; 32]);
        assert_eq!((copies.take_used().len(), copies.held_bytes()), (1, 0));
        assert!(copies.find(&[1; 32]).is_none());
    }
}
