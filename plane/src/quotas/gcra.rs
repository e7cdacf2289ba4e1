//! One rate limit: GCRA with reservations that are settled later.
//!
//! Each float is computed by the same operations in the same order as in Python, so that both agree to the bit.

pub const MINUTE_S: f64 = 60.0;

/// `per_minute` units flow back each minute; at most `burst` units can be taken at once.
///
/// `parts`: number of buckets that divide `per_minute` among them; `burst` is of this bucket alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub per_minute: i64,
    pub burst: i64,
    pub parts: i64,
    /// Seconds until one unit has flowed back.
    pub interval_s: f64,
    /// What this bucket gets back in a minute.
    pub limit: i64,
}

impl Rate {
    /// None where there is no rate: `per_minute` or `parts` is below 1.
    pub fn new(per_minute: i64, burst: i64, parts: i64) -> Option<Self> {
        if per_minute < 1 || parts < 1 {
            return None;
        }
        let interval_s = MINUTE_S * parts as f64 / per_minute as f64;
        Some(Rate { per_minute, burst, parts, interval_s, limit: (per_minute / parts).max(1) })
    }
}

/// A part of a bucket that one request took. `settle` replaces it by what the request used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    pub amount: i64,
    end_s: f64,
    /// Sum of the bucket's refunds before the hold was taken.
    refunded_s: f64,
    /// Number of changes of the bucket's rate before the hold was taken.
    changes: u64,
    settled: bool,
}

/// A bucket is full at first. `tat_s` is GCRA's theoretical arrival time: until then the bucket is not full.
///
/// It never owes more than what fills it once: no report of a server locks its tenant out for longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub rate: Rate,
    pub tat_s: f64,
    interval_s: f64,
    refunded_s: f64,
    changes: u64,
}

impl Bucket {
    pub fn new(rate: Rate) -> Self {
        Bucket { rate, tat_s: f64::NEG_INFINITY, interval_s: rate.interval_s, refunded_s: 0.0, changes: 0 }
    }

    /// Seconds until `amount` can be taken, 0: now. More than a full bucket waits for a full one.
    pub fn wait_s(&self, amount: i64, now_s: f64) -> f64 {
        if self.tat_s <= now_s {
            return 0.0; // it is full
        }
        let mut free_in_s = self.tat_s - now_s;
        if amount < self.rate.burst {
            free_in_s += (amount - self.rate.burst) as f64 * self.interval_s;
        }
        // Rounding must refuse no request: a billionth of a unit is none.
        if free_in_s > self.interval_s * 1e-9 {
            free_in_s
        } else {
            0.0
        }
    }

    /// Takes `amount`, at most a full bucket, without a check that it is there: callers check `wait_s` first.
    pub fn take(&mut self, amount: i64, now_s: f64) -> Hold {
        let amount = amount.min(self.rate.burst);
        self.tat_s = later(self.tat_s, now_s) + amount as f64 * self.interval_s;
        let (end_s, refunded_s, changes) = (self.tat_s, self.refunded_s, self.changes);
        Hold { amount, end_s, refunded_s, changes, settled: false }
    }

    /// Charges what was used beyond the hold, or gives back what was not used. The second call does nothing.
    ///
    /// What the time since then has already given back is not given back again: the bucket never has more than it
    /// would have if the use had been known from the start.
    pub fn settle(&mut self, hold: &mut Hold, used: i64, now_s: f64) {
        if hold.settled {
            return;
        }
        hold.settled = true;
        if used >= hold.amount {
            let more = used.saturating_sub(hold.amount).min(self.rate.burst.saturating_mul(2));
            self.tat_s = later(self.tat_s, now_s) + more as f64 * self.interval_s;
            self.forgive(now_s);
            return;
        }
        if hold.changes != self.changes {
            return; // the hold's seconds are those of another rate: the unused part flows back with time
        }
        // Of the hold and everything before it, so much has not flowed back yet.
        let left_s = hold.end_s - (self.refunded_s - hold.refunded_s) - now_s;
        if left_s > 0.0 {
            let unused_s = hold.amount.saturating_sub(used) as f64 * self.interval_s;
            let refund_s = if unused_s < left_s { unused_s } else { left_s };
            self.tat_s -= refund_s;
            self.refunded_s += refund_s;
        }
    }

    pub fn full_in_s(&self, now_s: f64) -> f64 {
        later(self.tat_s - now_s, 0.0)
    }

    /// Another limit from now on; what is owed stays owed, in units, up to a full bucket of the new limit.
    pub fn change(&mut self, rate: Rate, now_s: f64) {
        let owed = self.full_in_s(now_s) / self.interval_s;
        (self.rate, self.interval_s) = (rate, rate.interval_s);
        self.tat_s = now_s + owed * self.interval_s;
        self.changes += 1;
        self.forgive(now_s);
    }

    /// Drops what is owed beyond one full bucket. It counts as given back: no hold gives the same back again.
    fn forgive(&mut self, now_s: f64) {
        let latest_s = now_s + self.rate.burst.saturating_mul(2) as f64 * self.interval_s;
        if self.tat_s > latest_s {
            self.refunded_s += self.tat_s - latest_s;
            self.tat_s = latest_s;
        }
    }
}

/// The first number where it is greater, else the second one.
fn later(first: f64, second: f64) -> f64 {
    if first > second {
        first
    } else {
        second
    }
}
