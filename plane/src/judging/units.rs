//! Sessions of a generation as the judge's units, and a bound on the units of one client.
//!
//! A session sticks to a revision, so all of its requests are one observation, whichever lane serves them: both lanes
//! use the same memory. Whether it counts is decided when its first request is assigned.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use crate::handover::locked;

/// Sessions that one generation remembers.
pub const MAX_SESSIONS: usize = 65_536;
/// Clients that a generation distinguishes. Further ones have no bound.
const MAX_CLIENTS: usize = 4096;
const FREE_UNITS: f64 = 256.0;
const FREE_UNITS_PER_S: f64 = 10.0;
const BALANCE_SIGMAS: f64 = 5.0;
const BALANCE_UNITS: f64 = 4.0;
/// Sessions that are forgotten at once, when there is no room for another.
const FORGOTTEN: usize = 1024;
/// Prefix of the sticky key of a request without a session.
const ALONE: &[u8] = b"request:";
const COUNTS: &str = "counts";
const ENDED: &str = "ended";

/// The sessions of all generations, with one limit. When it is reached, the largest generation forgets some.
#[derive(Debug)]
pub struct SessionMemory {
    limit: usize,
    taken: usize,
    members: BTreeMap<u64, Sessions>,
    next: u64,
    /// Keyed by the process: no client can choose names that collide.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct ClientUnits {
    by_revision: HashMap<String, u64>,
    total: u64,
}

#[derive(Debug, Default)]
struct Sessions {
    weights: HashMap<String, i64>,
    begun_s: f64,
    /// The bit of each name.
    flags: Vec<String>,
    bits: HashMap<u64, u64>,
    oldest_first: VecDeque<u64>,
    clients: HashMap<u64, ClientUnits>,
    total: u64,
}

/// The sessions of one generation of a route.
#[derive(Clone, Debug)]
pub struct Units {
    memory: Arc<Mutex<SessionMemory>>,
    id: u64,
}

impl SessionMemory {
    pub fn new(limit: usize) -> Self {
        SessionMemory { limit, taken: 0, members: BTreeMap::new(), next: 0, hasher: RandomState::new() }
    }

    /// Sessions that are remembered in all.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Counts one more session, which always has room: at the limit, others are forgotten.
    fn make_room(&mut self) {
        if self.taken >= self.limit {
            let size = FORGOTTEN.min(self.limit);
            // Of several the oldest, as in Python.
            let largest = self.members.values_mut().rev().max_by_key(|one| one.oldest_first.len());
            self.taken -= largest.map_or(0, |one| one.forget(size));
        }
        self.taken += 1;
    }
}

impl Units {
    /// `weights`: of the generation, in percent by revision. `begun_s`: when it began, on the clock of `assign`.
    pub fn new(memory: Arc<Mutex<SessionMemory>>, weights: HashMap<String, i64>, begun_s: f64) -> Self {
        let mut all = locked(&memory);
        let id = all.next;
        all.next += 1;
        all.members.insert(id, Sessions { weights, begun_s, ..Sessions::default() });
        drop(all);
        Units { memory, id }
    }

    fn with<T: Default>(&self, work: impl FnOnce(&mut SessionMemory, &mut Sessions) -> T) -> T {
        let mut all = locked(&self.memory);
        // Taken out for a moment, so that making room sees all others and not this one.
        let Some(mut own) = all.members.remove(&self.id) else { return T::default() };
        let made = work(&mut all, &mut own);
        all.members.insert(self.id, own);
        made
    }

    /// A request of the session `key` was assigned to a revision. Returns whether it is a new unit, and whether its
    /// session counts.
    pub fn assign(&self, revision: &str, key: &[u8], client: &[u8], now_s: f64) -> (bool, bool) {
        let alone = key.starts_with(ALONE);
        let mut all = locked(&self.memory);
        let (session, client) = (all.hasher.hash_one(key), all.hasher.hash_one(client));
        let Some(own) = all.members.get_mut(&self.id) else { return (false, false) };
        if !alone {
            let bit = own.bit(COUNTS);
            if let Some(bits) = own.bits.get(&session) {
                return (false, bits & bit != 0);
            }
        }
        let counts = own.admit(revision, client, now_s);
        if !alone {
            let bits = if counts { own.bit(COUNTS) } else { 0 };
            self.remember_in(&mut all, session, bits);
        }
        (counts, counts)
    }

    fn remember_in(&self, all: &mut SessionMemory, session: u64, bits: u64) {
        let Some(own) = all.members.get_mut(&self.id) else { return };
        if own.oldest_first.len() >= MAX_SESSIONS {
            own.forget(1);
        } else {
            all.make_room();
        }
        let Some(own) = all.members.get_mut(&self.id) else { return };
        own.oldest_first.push_back(session);
        own.bits.insert(session, bits);
    }

    /// Remembers a session without a revision. A request without a session is not remembered.
    pub fn remember(&self, key: &[u8]) {
        let mut all = locked(&self.memory);
        let session = all.hasher.hash_one(key);
        let known = all.members.get(&self.id).is_none_or(|own| own.bits.contains_key(&session));
        if !key.starts_with(ALONE) && !known {
            self.remember_in(&mut all, session, 0);
        }
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.with(|all, own| own.bits.contains_key(&all.hasher.hash_one(key)))
    }

    /// Whether a request of a session that counts is the first one of it that ended.
    pub fn first_end(&self, key: &[u8]) -> bool {
        self.first(key, ENDED)
    }

    /// Sets the mark `name` of a session; returns whether it was not set. A session that was forgotten has none.
    pub fn first(&self, key: &[u8], name: &str) -> bool {
        let mut all = locked(&self.memory);
        let session = all.hasher.hash_one(key);
        let Some(own) = all.members.get_mut(&self.id) else { return true };
        if !own.bits.contains_key(&session) {
            return true;
        }
        let bit = own.bit(name);
        let Some(bits) = own.bits.get_mut(&session) else { return true };
        let before = *bits;
        *bits |= bit;
        before & bit == 0
    }

    /// Forgets so many sessions, those that came first; returns how many it forgot. The room stays taken.
    pub fn forget(&self, sessions: usize) -> usize {
        self.with(|_, own| own.forget(sessions))
    }

    /// The generation is no longer reported: its memory is freed.
    pub fn end(&self) {
        let mut all = locked(&self.memory);
        if let Some(own) = all.members.remove(&self.id) {
            all.taken -= own.oldest_first.len().min(all.taken);
        }
    }

    /// Sessions that are remembered.
    pub fn len(&self) -> usize {
        self.with(|_, own| own.oldest_first.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Sessions {
    fn bit(&mut self, name: &str) -> u64 {
        let at = self.flags.iter().position(|flag| flag == name).unwrap_or_else(|| {
            self.flags.push(name.to_owned());
            self.flags.len() - 1
        });
        1_u64.checked_shl(u32::try_from(at).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    fn forget(&mut self, sessions: usize) -> usize {
        let gone = sessions.min(self.oldest_first.len());
        for session in self.oldest_first.drain(..gone) {
            self.bits.remove(&session);
        }
        gone
    }

    fn admit(&mut self, revision: &str, client: u64, now_s: f64) -> bool {
        let is_known = self.clients.contains_key(&client);
        if is_known || self.clients.len() < MAX_CLIENTS {
            let is_only = self.clients.len() + usize::from(!is_known) == 1;
            let (total, begun_s) = (self.total, self.begun_s);
            let weight = self.weights.get(revision).copied().unwrap_or(0) as f64 / 100.0;
            let found = self.clients.entry(client).or_default();
            let has_room = is_only
                || found.total < total - found.total
                || (found.total as f64) < FREE_UNITS + FREE_UNITS_PER_S * (now_s - begun_s);
            if !(has_room && found.is_balanced(revision, weight)) {
                return false;
            }
            *found.by_revision.entry(revision.to_owned()).or_default() += 1;
            found.total += 1;
        }
        self.total += 1;
        true
    }
}

impl ClientUnits {
    /// Whether one more unit at the revision leaves the client's share of it near the revision's weight.
    fn is_balanced(&self, revision: &str, weight: f64) -> bool {
        if weight == 1.0 {
            return true; // it has all of them
        }
        let total = (self.total + 1) as f64;
        let here = self.by_revision.get(revision).copied().unwrap_or(0) as f64;
        let excess = here + 1.0 - weight * total;
        excess <= BALANCE_SIGMAS * (weight * (1.0 - weight) * total).sqrt() + BALANCE_UNITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(limit: usize, count: usize) -> Vec<Units> {
        let memory = Arc::new(Mutex::new(SessionMemory::new(limit)));
        let weights = || HashMap::from([("a".to_owned(), 100)]);
        (0..count).map(|_| Units::new(memory.clone(), weights(), 0.0)).collect()
    }

    #[test]
    fn a_session_is_one_unit_and_each_of_its_marks_counts_once() {
        let one = &units(10, 1)[0];
        assert_eq!(one.assign("a", b"session:s", b"c", 0.0), (true, true));
        assert_eq!(one.assign("a", b"session:s", b"c", 0.0), (false, true));
        assert_eq!(one.assign("a", b"request:1", b"c", 0.0), (true, true));
        assert_eq!((one.len(), one.has(b"session:s"), one.has(b"request:1")), (1, true, false));
        assert!(one.first_end(b"session:s") && !one.first_end(b"session:s") && one.first(b"session:s", "e2e"));
    }

    #[test]
    fn at_the_limit_the_largest_generation_forgets() {
        let made = units(100, 2);
        for n in 0..100 {
            made[0].assign("a", format!("session:{n}").as_bytes(), b"c", 0.0);
        }
        made[1].assign("a", b"session:x", b"c", 0.0);
        assert_eq!((made[0].len(), made[1].len(), locked(&made[0].memory).taken()), (0, 1, 1));
        made[1].end();
        assert_eq!(locked(&made[0].memory).taken(), 0);
    }
}
