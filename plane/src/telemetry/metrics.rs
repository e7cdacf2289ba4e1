//! Histograms and counters of the fast lane, which Python adds to its own.

use std::collections::HashMap;

use crate::judging::samples::bucket;

/// Names of routes by which reasons are counted. Only those of a table are names, so few are more.
const MAX_REASONS: usize = 4096;

/// Observed times, in the buckets of a histogram.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// By bucket, the last one without a bound; empty: none was observed.
    pub buckets: Vec<u64>,
    pub sum: f64,
}

impl Times {
    pub fn observe(&mut self, bounds: &[f64], seconds: f64) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; bounds.len() + 1];
        }
        if let Some(count) = self.buckets.get_mut(bucket(bounds, seconds)) {
            *count += 1;
        }
        self.sum += seconds;
    }
}

/// Requests that went to Python, by model and reason.
#[derive(Debug, Default)]
pub struct HandOvers(HashMap<(String, &'static str), u64>);

impl HandOvers {
    /// `model`: empty where it is not known.
    pub fn count(&mut self, model: &str, reason: &'static str) {
        if let Some(count) = self.0.get_mut(&(model.to_owned(), reason)) {
            *count += 1;
        } else if self.0.len() < MAX_REASONS {
            self.0.insert((model.to_owned(), reason), 1);
        }
    }

    pub fn take(&mut self) -> Vec<(String, &'static str, u64)> {
        self.0.drain().map(|((model, reason), count)| (model, reason, count)).collect()
    }
}
