//! Counts of the fast lane's first attempts, by generation and revision. Python adds them to its own and reports both.
//!
//! A request is counted at its end: one that takes longer than a second is Python's by then, so that nothing that is
//! in progress for longer is missing in a report.

use std::collections::HashMap;
use std::sync::Mutex;

use super::units::Units;
use crate::handover::locked;

const SMALL_BYTES: usize = 4 << 10;
const MEDIUM_BYTES: usize = 32 << 10;
const E2E: &str = "e2e";

/// The stratum of a request without a stream. `is_cached`: its endpoint had seen most of its prompt.
pub fn stratum(size_bytes: usize, is_cached: bool) -> &'static str {
    match (size_bytes, is_cached) {
        (0..SMALL_BYTES, false) => "b<4k,whole",
        (0..SMALL_BYTES, true) => "b<4k,whole,cached",
        (SMALL_BYTES..MEDIUM_BYTES, false) => "b<32k,whole",
        (SMALL_BYTES..MEDIUM_BYTES, true) => "b<32k,whole,cached",
        (_, false) => "b>=32k,whole",
        (_, true) => "b>=32k,whole,cached",
    }
}

/// Counts of one revision since Python took them last. `slow` and `late`: latencies by stratum, in buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionSamples {
    pub assigned: u64,
    pub requests: u64,
    pub units: u64,
    pub slow: HashMap<&'static str, Vec<u64>>,
    pub late: HashMap<&'static str, Vec<u64>>,
}

/// A first attempt of the lane that is over.
#[derive(Clone, Copy, Debug)]
pub struct EndedAttempt<'a> {
    /// The revision that the split chose, and the one that served.
    pub own: &'a str,
    pub served: &'a str,
    pub key: &'a [u8],
    pub client: &'a [u8],
    pub stratum: &'static str,
    /// Since it began.
    pub seconds: f64,
    /// False: its client left, so that it has no outcome.
    pub is_good: bool,
}

/// Counts of one generation of a route's weights.
#[derive(Debug)]
pub struct GenerationSamples {
    pub units: Units,
    /// Upper ends of the buckets of latencies, inclusive.
    bounds: Vec<f64>,
    /// Whether lower bounds of attempts without an outcome count: only where there is a revision to compare with.
    keeps_open: bool,
    counts: Mutex<HashMap<String, RevisionSamples>>,
}

impl GenerationSamples {
    pub fn new(units: Units, bounds: Vec<f64>, keeps_open: bool) -> Self {
        GenerationSamples { units, bounds, keeps_open, counts: Mutex::default() }
    }

    /// Counts an attempt. `now_s`: on the clock of the units.
    pub fn count(&self, attempt: &EndedAttempt<'_>, now_s: f64) {
        let (new, counts) = self.units.assign(attempt.own, attempt.key, attempt.client, now_s);
        let measures = counts && attempt.own == attempt.served && {
            !self.units.has(attempt.key) || self.units.first(attempt.key, E2E)
        };
        let mut all = locked(&self.counts);
        let own = all.entry(attempt.own.to_owned()).or_default();
        own.assigned += u64::from(new);
        if attempt.own != attempt.served {
            return; // its outcome counts for neither revision
        }
        if !attempt.is_good {
            let is_bound = self.bounds.first().is_some_and(|first| attempt.seconds > *first);
            if self.keeps_open && measures && is_bound {
                self.add(&mut own.late, attempt);
            }
            return;
        }
        own.requests += 1;
        if counts {
            own.units += u64::from(self.units.first_end(attempt.key));
            if measures {
                self.add(&mut own.slow, attempt);
            }
        }
    }

    /// A request got a copy of a kept response. Its session counts as assigned to the revision that the split chose, as in
    /// Python; its outcome counts for none.
    pub fn hit(&self, own: &str, key: &[u8], client: &[u8], now_s: f64) {
        let (new, _) = self.units.assign(own, key, client, now_s);
        if new {
            locked(&self.counts).entry(own.to_owned()).or_default().assigned += 1;
        }
    }

    fn add(&self, found: &mut HashMap<&'static str, Vec<u64>>, attempt: &EndedAttempt<'_>) {
        let counts = found.entry(attempt.stratum).or_insert_with(|| vec![0; self.bounds.len() + 1]);
        if let Some(count) = counts.get_mut(bucket(&self.bounds, attempt.seconds)) {
            *count += 1;
        }
    }

    /// The counts since the last call, by revision.
    pub fn take(&self) -> HashMap<String, RevisionSamples> {
        std::mem::take(&mut *locked(&self.counts))
    }
}

/// The bucket of a value: as Python's `bisect_left`.
pub fn bucket(bounds: &[f64], value: f64) -> usize {
    bounds.partition_point(|bound| *bound < value)
}
