//! Activity of each route in the fast lane: requests in progress, and when the last one ended.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use crate::handover::locked;

/// Activity of one route object.
#[derive(Debug, Default)]
pub struct RouteActivity {
    present: AtomicI64,
    left: Mutex<Option<Instant>>,
}

impl RouteActivity {
    pub fn enter(&self) {
        self.present.fetch_add(1, Ordering::SeqCst);
    }

    pub fn leave(&self) {
        *locked(&self.left) = Some(Instant::now());
        self.present.fetch_sub(1, Ordering::SeqCst);
    }

    /// Requests in progress, and seconds since the last one ended.
    pub fn report(&self) -> (i64, Option<f64>) {
        let present = self.present.load(Ordering::SeqCst);
        (present, locked(&self.left).map(|left| left.elapsed().as_secs_f64()))
    }
}
