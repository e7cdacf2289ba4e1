//! Takes a request into the limits and the budget of its tenant, and charges it when it ends, however it ends.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::time::timeout_at;

use crate::balancing::in_flight::Revision;
use crate::handover::{locked, HandOver};
use crate::identity::tenants::{Identity, Tenant};
use crate::lane::Lane;
use crate::ledger::charges::{Charge, Payer, Saved};
use crate::ledger::periods::hour_of;
use crate::quotas::bounds::UsageBound;
use crate::quotas::estimate::{estimate, output_limit, repeated_bytes, Estimate, TEXT_PATHS};
use crate::quotas::meter::{Beginning, Meter};
use crate::quotas::prices::{price_of, Price};
use crate::quotas::tenant::{headers, Amounts, LimitHeaders, Reservation};
use crate::quotas::usage::Usage;
use crate::routing::table::Route;
use crate::sharing::counters::{Call, Settlement};
use crate::wire::headers::line;
use crate::wire::request_fields::RequestFields;
use crate::wire::responses::{computes, writes_text};

/// What a request is charged by limit; a limit without an amount is charged what was reserved.
pub type Used = [Option<i64>; 3];

const KEEPS: Used = [None; 3];
const NOTHING: Used = [Some(0); 3];
const LIMIT_HEADERS: [[&str; 3]; 2] = [
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
];

/// The beginning of the names of all of them.
pub const LIMIT_PREFIX: &str = "x-ratelimit-";

/// A request of a tenant, as far as its cost follows from it.
#[derive(Clone, Debug)]
pub struct Metered {
    pub identity: Identity,
    pub estimate: Estimate,
    bound: UsageBound,
    /// Its body is of any type, and was not read.
    is_opaque: bool,
    /// In the tenant's prices; None: it is free.
    price: Option<usize>,
    /// The usage of the kept response of which it gets a copy.
    hit: Option<Usage>,
}

/// What a response costs its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bill {
    pub charge: Charge,
    /// As the head of the response has them.
    pub prompt_tokens: Option<i64>,
    used: Used,
    /// As `used`, for a client that left before it had the response.
    used_if_left: Used,
}

impl Bill {
    /// Whether it is the same if the client leaves before it has the response.
    pub fn is_certain(&self) -> bool {
        self.used == self.used_if_left
    }
}

impl Metered {
    /// `fields`: of the body as the client sent it; of none where that is opaque. `body`: as the server gets it.
    pub fn new(
        identity: Identity,
        route: &Route,
        path: &str,
        fields: &RequestFields<'_>,
        body: Arc<Vec<u8>>,
        is_opaque: bool,
    ) -> Self {
        let tenant = &identity.tenant;
        let (size, output) = (body.len(), tenant.output_tokens);
        let estimate = estimate(fields, path, size, output, computes(path), writes_text(path));
        let repeated = if TEXT_PATHS.contains(&path) { repeated_bytes(fields) } else { 0 };
        let bound = UsageBound::new(body, fields, output_limit(fields, path), repeated, false);
        let names = [route.name.as_str(), route.id.as_str()];
        let best = price_of(&tenant.prices, &names);
        let price = best.and_then(|best| tenant.prices.iter().position(|one| std::ptr::eq(one, best)));
        Metered { identity, estimate, bound, is_opaque, price, hit: None }
    }

    /// The request gets a copy of a kept response, which was computed for another one with this usage. It is one request,
    /// and takes tokens from limits only where they have a price.
    pub fn hit(&mut self, usage: Usage) {
        let is_priced = self.price().is_some_and(|price| price.hit_percentage != 0);
        let Usage { input_tokens, output_tokens, .. } = usage;
        self.estimate = if is_priced { Estimate { input_tokens, output_tokens } } else { Estimate::default() };
        self.hit = Some(usage);
    }

    /// What a copy of a kept response costs; None: it gets none.
    pub fn hit_bill(&self) -> Option<Bill> {
        let usage = self.hit?;
        let Estimate { input_tokens, output_tokens } = self.estimate;
        let cost_nano = self.hit_cost_nano(&usage);
        let saved = Saved { usage, cost_nano: i128::from(self.cost_nano(&usage)) - i128::from(cost_nano) };
        let hit = Some(((input_tokens, output_tokens), saved));
        let charge = Charge { usage: Usage::default(), cost_nano, estimated: false, hit };
        let used = self.amounts().map(Some);
        Some(Bill { charge, prompt_tokens: None, used, used_if_left: used })
    }

    /// What a whole response of status 200 costs. `prompt_tokens`: as its head has them.
    ///
    /// # Errors
    /// Python has to count: it may read the usage differently, or the request cannot have caused it.
    pub fn bill(&self, prompt_tokens: Option<i64>, body: &[u8]) -> Result<Bill, &'static str> {
        let mut meter = Meter::new(self.estimate, self.bound.clone(), 0, false, false);
        (meter.sent, meter.answered) = (true, true);
        meter.begin(&Beginning { prompt_tokens, ..Beginning::default() });
        meter.add_body(body);
        let is_plausible = meter.implausible().map_err(|_| "usage")?.is_none();
        let (usage, estimated) = meter.usage().map_err(|_| "usage")?;
        // How often a body that was not read is computed is not known, so its bytes alone bound its usage here.
        if !is_plausible || (self.is_opaque && !self.bound.is_within(&usage, body.len() as i64)) {
            return Err("usage");
        }
        let used = meter.used(false).map_err(|_| "usage")?;
        let used_if_left = meter.used(true).map_err(|_| "usage")?;
        let charge = Charge { usage, cost_nano: self.cost_nano(&usage), estimated, hit: None };
        Ok(Bill { charge, prompt_tokens, used, used_if_left })
    }

    /// Amounts of requests, input and output tokens that it reserves.
    pub fn amounts(&self) -> Amounts {
        [1, self.estimate.input_tokens, self.estimate.output_tokens]
    }

    pub fn tenant(&self) -> &Arc<Tenant> {
        &self.identity.tenant
    }

    /// What the tokens cost that it reserves, in billionths of the currency.
    pub fn expected_nano(&self) -> i64 {
        if let Some(usage) = &self.hit {
            return self.hit_cost_nano(usage);
        }
        let Estimate { input_tokens, output_tokens } = self.estimate;
        self.cost_nano(&Usage { input_tokens, output_tokens, cached_tokens: 0 })
    }

    fn price(&self) -> Option<&Price> {
        self.price.and_then(|at| self.identity.tenant.prices.get(at))
    }

    fn cost_nano(&self, usage: &Usage) -> i64 {
        self.price().map_or(0, |price| price.cost_nano(usage))
    }

    fn hit_cost_nano(&self, usage: &Usage) -> i64 {
        self.price().map_or(0, |price| price.hit_cost_nano(usage))
    }
}

/// What a request took from its tenant's limits and budget, until one of its methods ends that. Dropped, it keeps what it
/// reserved: what its server did is not known.
#[derive(Debug)]
pub struct Reserved {
    lane: Arc<Lane>,
    tenant: Arc<Tenant>,
    key: Arc<str>,
    hour: i64,
    /// None: it has ended, or Python settles it.
    taken: Option<Taken>,
    expected_nano: i64,
    pub headers: LimitHeaders,
}

/// From what a request took.
#[derive(Debug)]
enum Taken {
    /// The buckets of this process.
    Here(Reservation),
    /// Those of all gateways together, by this id of the request.
    Shared(String, Arc<HandOver>),
}

/// What Python gets of a reservation: none of this process, where gateways count together.
pub type HandedReservation = (Option<Reservation>, LimitHeaders);

impl Reserved {
    /// The request begins, within its budget and its limits. `id`: of the request. `handover`: by which Python counts it
    /// with other gateways, where these count together; it answers until `deadline`.
    ///
    /// # Errors
    /// Why Python decides: it refuses requests, and counts refusals.
    pub async fn take(
        lane: &Arc<Lane>,
        metered: &Metered,
        id: &str,
        handover: &Arc<HandOver>,
        deadline: Instant,
    ) -> Result<Reserved, &'static str> {
        let mut reserved = Reserved::open(lane, metered)?;
        let tenant = metered.tenant();
        match &tenant.shared_limits {
            None => {
                let now_s = lane.now_s();
                let mut quota = locked(&tenant.quota);
                let reservation = quota.reserve(metered.amounts(), now_s).map_err(|_| "limit")?;
                (reserved.taken, reserved.headers) = (Some(Taken::Here(reservation)), quota.headers(now_s));
            }
            Some(limits) => {
                let full_s = call(lane, metered, id, handover, deadline).await?;
                locked(&tenant.quota).running += 1;
                reserved.taken = Some(Taken::Shared(id.to_owned(), handover.clone()));
                let rates = limits.rates().into_iter().zip(full_s);
                reserved.headers = headers(rates.map(|((limit, rate), full_s)| (limit, rate, full_s)));
            }
        }
        Ok(reserved)
    }

    /// Its expected cost counts against the budget.
    fn open(lane: &Arc<Lane>, metered: &Metered) -> Result<Reserved, &'static str> {
        let (tenant, hour) = (metered.tenant().clone(), hour_of(unix_s()));
        let expected_nano = metered.expected_nano();
        let period = locked(&lane.spending).begin(&tenant.name, i128::from(expected_nano), &tenant.budget, hour);
        if !period.is_empty() {
            return Err("budget");
        }
        let (lane, key, headers) = (lane.clone(), metered.identity.key.clone(), LimitHeaders::default());
        Ok(Reserved { lane, tenant, key, hour, taken: None, expected_nano, headers })
    }

    pub fn tenant(&self) -> &str {
        &self.tenant.name
    }

    /// Whether a charge for a response of this revision has room among those that wait for Python.
    pub fn has_room(&self, revision: &Arc<Revision>) -> bool {
        locked(&self.lane.charges).has_room(&self.payer(revision))
    }

    /// Appends the header lines that show the tenant's limits.
    pub fn write_headers(&self, out: &mut Vec<u8>) {
        for (names, values) in LIMIT_HEADERS.iter().zip(&self.headers) {
            for (name, value) in names.iter().zip(values.iter().flatten()) {
                line(out, name, value.as_bytes());
            }
        }
    }

    /// The response was sent, or its client was gone before that: it is charged in both cases.
    pub fn charge(mut self, revision: &Arc<Revision>, bill: &Bill, has_left: bool) {
        self.end(if has_left { bill.used_if_left } else { bill.used }, i128::from(bill.charge.cost_nano));
        locked(&self.lane.charges).add(&self.payer(revision), Some(&bill.charge));
    }

    /// The client left before the response began: what was generated is not known.
    pub fn leave(mut self, revision: &Arc<Revision>) {
        self.end(KEEPS, 0);
        locked(&self.lane.charges).add(&self.payer(revision), None);
    }

    /// The request was not sent.
    pub fn release(mut self) {
        self.end(NOTHING, 0);
    }

    /// Python settles it, which expects its cost already.
    pub fn hand(mut self) -> HandedReservation {
        let taken = self.taken.take();
        let shown = std::mem::take(&mut self.headers);
        match taken {
            Some(Taken::Here(reservation)) => (Some(reservation), shown),
            _ => (None, shown),
        }
    }

    fn payer(&self, revision: &Arc<Revision>) -> Payer {
        let (tenant, key, revision) = (self.tenant.name.clone(), self.key.clone(), revision.clone());
        Payer { tenant, key, revision, hour: self.hour }
    }

    fn end(&mut self, used: Used, cost_nano: i128) {
        match self.taken.take() {
            Some(Taken::Here(mut reservation)) => {
                locked(&self.tenant.quota).settle(&mut reservation, used, self.lane.now_s());
            }
            Some(Taken::Shared(id, handover)) => {
                locked(&self.tenant.quota).running -= 1;
                let tenant = self.tenant.name.to_string();
                handover.settle(Settlement { tenant, id, used });
            }
            None => {}
        }
        // Its cost is no longer the expected one, but this.
        locked(&self.lane.spending).expect(&self.tenant.name, cost_nano - i128::from(self.expected_nano));
        self.expected_nano = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.end(KEEPS, 0);
    }
}

/// Has Python count a request with other gateways; returns the seconds until each bucket is full.
async fn call(
    lane: &Arc<Lane>,
    metered: &Metered,
    id: &str,
    handover: &Arc<HandOver>,
    deadline: Instant,
) -> Result<Vec<f64>, &'static str> {
    let (ticket, answer, is_first) = lane.waiting.ticket();
    let waits = Waits(lane, ticket);
    let (tenant, id) = (metered.tenant().name.to_string(), id.to_owned());
    handover.call(Call { ticket, tenant, id, amounts: metered.amounts() }, is_first);
    let answer = timeout_at(deadline.into(), answer).await;
    drop(waits);
    match answer {
        Ok(Ok(Some(full_s))) => Ok(full_s),
        Ok(_) => Err("limit"),
        Err(_) => Err("shared"),
    }
}

/// Forgets a ticket when nothing waits for its answer any more: then Python gives back what was counted.
struct Waits<'a>(&'a Lane, u64);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.forget(self.1);
    }
}

/// Unix time.
pub fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
