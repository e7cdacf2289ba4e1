//! All limits of one tenant: a request takes from every bucket or from none.

use super::gcra::{Bucket, Hold, Rate, MINUTE_S};

/// A limit of a tenant, in the order in which Python counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Requests,
    Input,
    Output,
    Concurrency,
}

impl Limit {
    /// The name in metrics, reports and errors.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Requests => "requests",
            Limit::Input => "input_tokens",
            Limit::Output => "output_tokens",
            Limit::Concurrency => "concurrency",
        }
    }
}

/// Limits that have a bucket.
pub const BUCKETS: [Limit; 3] = [Limit::Requests, Limit::Input, Limit::Output];
/// Amounts by `BUCKETS`.
pub type Amounts = [i64; 3];

const CONCURRENCY_WAIT_S: f64 = 1.0;

/// Limits of one tenant; 0: no limit. `burst_s`: a full bucket holds the units of this many seconds, at least one.
///
/// `parts`: number of gateways that divide the limits per minute among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// By `BUCKETS`.
    pub per_minute: Amounts,
    pub concurrency: i64,
    pub burst_s: f64,
    pub parts: i64,
}

impl Limits {
    /// The limits that have a rate, with it.
    pub fn rates(&self) -> Vec<(Limit, Rate)> {
        BUCKETS.into_iter().filter_map(|limit| Some((limit, self.rate(limit)?))).collect()
    }

    fn rate(&self, limit: Limit) -> Option<Rate> {
        let per_minute = *self.per_minute.get(limit as usize)?;
        let burst = (per_minute as f64 * self.burst_s / MINUTE_S / self.parts as f64) as i64;
        Rate::new(per_minute, burst.max(1), self.parts)
    }
}

/// A request is refused: a limit, and the seconds after which the request would be admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitReached {
    pub limit: Limit,
    pub wait_s: f64,
}

/// What one request took from each bucket, until `TenantQuota::settle` ends it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reservation {
    /// By `BUCKETS`.
    holds: [Option<Hold>; 3],
    ended: bool,
}

/// The buckets of one tenant in one process.
#[derive(Clone, Debug)]
pub struct TenantQuota {
    limits: Limits,
    /// In the order in which they came to be, as in Python's dict: of equal waits the first one counts.
    buckets: Vec<(Limit, Bucket)>,
    pub running: i64,
    /// Requests whose body is awaited; they are not running yet.
    arriving: i64,
}

impl TenantQuota {
    pub fn new(limits: Limits) -> Self {
        let bucket = |limit: &Limit| limits.rate(*limit).map(|rate| (*limit, Bucket::new(rate)));
        TenantQuota { limits, buckets: BUCKETS.iter().filter_map(bucket).collect(), running: 0, arriving: 0 }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The body of a request is awaited until `arrived`.
    ///
    /// # Errors
    /// `most` bodies are awaited already.
    pub fn arrive(&mut self, most: i64) -> Result<(), LimitReached> {
        if self.arriving >= most {
            return Err(LimitReached { limit: Limit::Concurrency, wait_s: CONCURRENCY_WAIT_S });
        }
        self.arriving += 1;
        Ok(())
    }

    /// The body of a request is here, or its client is gone.
    pub fn arrived(&mut self) {
        self.arriving -= 1;
    }

    /// Admits a request: takes `amounts` from all buckets, or from none.
    ///
    /// # Errors
    /// The limit that is reached. A refusal changes nothing: a client that retries too often does not wait longer.
    pub fn reserve(&mut self, amounts: Amounts, now_s: f64) -> Result<Reservation, LimitReached> {
        if self.limits.concurrency != 0 && self.running >= self.limits.concurrency {
            return Err(LimitReached { limit: Limit::Concurrency, wait_s: CONCURRENCY_WAIT_S });
        }
        let mut longest: Option<LimitReached> = None;
        for (limit, bucket) in &self.buckets {
            let wait_s = bucket.wait_s(amounts[*limit as usize], now_s);
            if wait_s > longest.map_or(0.0, |reached| reached.wait_s) {
                longest = Some(LimitReached { limit: *limit, wait_s });
            }
        }
        if let Some(reached) = longest {
            return Err(reached);
        }
        self.running += 1;
        let mut reservation = Reservation::default();
        for (limit, bucket) in &mut self.buckets {
            reservation.holds[*limit as usize] = Some(bucket.take(amounts[*limit as usize], now_s));
        }
        Ok(reservation)
    }

    /// Ends a reservation and charges `used`; a limit without an amount is charged what was reserved.
    ///
    /// The second call does nothing.
    pub fn settle(&mut self, reservation: &mut Reservation, used: [Option<i64>; 3], now_s: f64) {
        if reservation.ended {
            return;
        }
        reservation.ended = true;
        self.running -= 1;
        for (limit, bucket) in &mut self.buckets {
            let at = *limit as usize;
            if let (Some(hold), Some(amount)) = (reservation.holds[at].as_mut(), used[at]) {
                bucket.settle(hold, amount, now_s);
            }
        }
    }

    /// Other limits from now on: what was used stays used.
    pub fn change(&mut self, limits: Limits, now_s: f64) {
        self.limits = limits;
        self.buckets.retain(|(limit, _)| limits.rate(*limit).is_some());
        for limit in BUCKETS {
            let Some(rate) = limits.rate(limit) else { continue };
            match self.buckets.iter_mut().find(|(known, _)| *known == limit) {
                None => self.buckets.push((limit, Bucket::new(rate))),
                Some((_, bucket)) if bucket.rate != rate => bucket.change(rate, now_s),
                Some(_) => {}
            }
        }
    }

    /// Whether the quota is like a new one: no request runs or arrives, and all buckets are full.
    pub fn is_idle(&self, now_s: f64) -> bool {
        self.running == 0 && self.arriving == 0 && self.buckets.iter().all(|(_, one)| one.full_in_s(now_s) <= 0.0)
    }

    /// Units of a limit that have not flowed back yet; 0 without such a limit.
    pub fn owed(&self, limit: Limit, now_s: f64) -> f64 {
        let bucket = self.buckets.iter().find(|(known, _)| *known == limit);
        bucket.map_or(0.0, |(_, one)| one.full_in_s(now_s) / one.rate.interval_s)
    }

    /// The `x-ratelimit-*` headers as OpenAI's clients know them. Of input and output tokens they show the scarcer
    /// limit. Of `requests` and of `tokens` each: the limit, what remains, and when the bucket is full.
    pub fn headers(&self, now_s: f64) -> LimitHeaders {
        headers(self.buckets.iter().map(|(limit, bucket)| (*limit, bucket.rate, bucket.full_in_s(now_s))))
    }
}

/// `x-ratelimit-*` of requests and of tokens: the limit, what remains, and when the bucket is full.
pub type LimitHeaders = [Option<[String; 3]>; 2];

/// As `TenantQuota::headers`, of limits with their rates and the seconds until each bucket is full.
pub fn headers(buckets: impl Iterator<Item = (Limit, Rate, f64)>) -> LimitHeaders {
    let mut shown = [None, None];
    let mut scarcest = f64::INFINITY;
    for (name, rate, full_in_s) in buckets {
        let remaining = (rate.burst as f64 - full_in_s / rate.interval_s + 1e-6) as i64;
        let remaining = remaining.max(0); // more is owed than a bucket
        let of = match name {
            Limit::Requests => 0,
            _ if remaining as f64 / (rate.limit as f64) < scarcest => {
                scarcest = remaining as f64 / rate.limit as f64;
                1
            }
            _ => continue,
        };
        let [limit, rest] = [rate.limit, remaining.min(rate.limit)].map(|number| number.to_string());
        shown[of] = Some([limit, rest, duration(full_in_s)]);
    }
    shown
}

/// A duration in the format of OpenAI's headers: `12ms`, `1.5s`, `6m0s`, `1h0m0s`.
pub fn duration(seconds: f64) -> String {
    let thousandths = (seconds * 1000.0).round_ties_even() as i64;
    if thousandths < 1000 {
        return format!("{thousandths}ms");
    }
    let (minutes, rest) = (thousandths / 60_000, thousandths % 60_000);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let fraction = format!("{:03}", rest % 1000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    let text = format!("{}{point}{fraction}s", rest / 1000);
    match (hours, minutes) {
        (0, 0) => text,
        (0, _) => format!("{minutes}m{text}"),
        _ => format!("{hours}h{minutes}m{text}"),
    }
}
