//! What tenants may use and have used, as Python sees it: both lanes count in these objects.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;

use crate::handover::locked;
use crate::identity::tenants::{self, TenantKey};
use crate::ledger::periods;
use crate::ledger::spending::{self, Budget, Spent};
use crate::quotas::prices::Price;
use crate::quotas::registry;
use crate::quotas::tenant::{self, Limit, Limits, BUCKETS};
use crate::wire::request_fields::pseudonym;

pub type LimitsTuple = ([i64; 3], i64, f64, i64);
pub type PriceTuple = (String, i64, i64, Option<i64>, i64, i64);
type BudgetTuple = (Option<i128>, Option<i128>);
type KeyTuple = (String, String, Option<f64>);

pub fn limits_of(limits: LimitsTuple) -> Limits {
    Limits { per_minute: limits.0, concurrency: limits.1, burst_s: limits.2, parts: limits.3 }
}

pub fn price_of_tuple(price: PriceTuple) -> Price {
    let (model, input_micro, output_micro, cached_input_micro, request_nano, hit_percentage) = price;
    Price { model, input_micro, output_micro, cached_input_micro, request_nano, hit_percentage }
}

fn budget_of((day_nano, month_nano): BudgetTuple) -> Budget {
    Budget { day_nano, month_nano }
}

/// What one request took from the limits of its tenant.
#[pyclass]
pub struct Reservation(pub tenant::Reservation);

/// The quota of one tenant.
#[pyclass(frozen)]
pub struct TenantQuota(pub registry::SharedQuota);

#[pymethods]
impl TenantQuota {
    /// `limits`: per minute of requests, input and output tokens; concurrency; seconds of a burst; parts.
    #[new]
    fn new(limits: LimitsTuple) -> Self {
        TenantQuota(Arc::new(Mutex::new(tenant::TenantQuota::new(limits_of(limits)))))
    }

    /// A reservation, or the limit that is reached and the seconds to wait.
    fn reserve(&self, amounts: [i64; 3], now_s: f64) -> (Option<Reservation>, Option<(&'static str, f64)>) {
        match locked(&self.0).reserve(amounts, now_s) {
            Ok(reservation) => (Some(Reservation(reservation)), None),
            Err(reached) => (None, Some((reached.limit.name(), reached.wait_s))),
        }
    }

    fn settle(&self, reservation: &mut Reservation, used: [Option<i64>; 3], now_s: f64) {
        locked(&self.0).settle(&mut reservation.0, used, now_s);
    }

    fn change(&self, limits: LimitsTuple, now_s: f64) {
        locked(&self.0).change(limits_of(limits), now_s);
    }

    fn arrive(&self, most: i64) -> Option<(&'static str, f64)> {
        locked(&self.0).arrive(most).err().map(|reached| (reached.limit.name(), reached.wait_s))
    }

    fn arrived(&self) {
        locked(&self.0).arrived();
    }

    fn enter(&self) {
        locked(&self.0).running += 1;
    }

    fn leave(&self) {
        locked(&self.0).running -= 1;
    }

    fn is_idle(&self, now_s: f64) -> bool {
        locked(&self.0).is_idle(now_s)
    }

    fn owed(&self, limit: &str, now_s: f64) -> f64 {
        let limit: Option<Limit> = BUCKETS.into_iter().find(|known| known.name() == limit);
        limit.map_or(0.0, |limit| locked(&self.0).owed(limit, now_s))
    }

    fn headers(&self, now_s: f64) -> [Option<[String; 3]>; 2] {
        locked(&self.0).headers(now_s)
    }

    #[getter]
    fn running(&self) -> i64 {
        locked(&self.0).running
    }
}

#[pyclass(frozen)]
pub struct Quotas(pub Arc<Mutex<registry::Quotas>>);

#[pymethods]
impl Quotas {
    #[new]
    fn new() -> Self {
        Quotas(Arc::default())
    }

    fn of(&self, tenant: &str, limits: LimitsTuple, now_s: f64) -> TenantQuota {
        TenantQuota(locked(&self.0).of(tenant, &limits_of(limits), now_s))
    }

    fn find(&self, tenant: &str) -> Option<TenantQuota> {
        locked(&self.0).find(tenant).map(TenantQuota)
    }

    fn names(&self) -> Vec<String> {
        locked(&self.0).names()
    }

    fn forget_others(&self, tenants: HashSet<String>, now_s: f64) {
        locked(&self.0).forget_others(&tenants, now_s);
    }
}

#[pyclass(frozen)]
pub struct Spending(pub Arc<Mutex<spending::Spending>>);

#[pymethods]
impl Spending {
    #[new]
    fn new() -> Self {
        Spending(Arc::default())
    }

    fn read(&self, spent: HashMap<String, (i128, i128)>, hour: i64) {
        let of = |(tenant, (day_nano, month_nano))| (tenant, Spent { day_nano, month_nano });
        locked(&self.0).read(spent.into_iter().map(of).collect(), hour);
    }

    fn written(&self, added: HashMap<String, i128>) {
        locked(&self.0).written(&added.into_iter().collect::<Vec<_>>());
    }

    fn expect(&self, tenant: &str, nano: i128) {
        locked(&self.0).expect(tenant, nano);
    }

    fn begin(&self, tenant: &str, nano: i128, budget: BudgetTuple, hour: i64) -> &'static str {
        locked(&self.0).begin(tenant, nano, &budget_of(budget), hour)
    }

    fn unwritten(&self, tenant: &str) -> i128 {
        locked(&self.0).unwritten(tenant)
    }

    fn of(&self, tenant: &str, hour: i64) -> (i128, i128) {
        let spent = locked(&self.0).of(tenant, hour);
        (spent.day_nano, spent.month_nano)
    }

    fn exhausted(&self, tenant: &str, budget: BudgetTuple, hour: i64) -> &'static str {
        locked(&self.0).exhausted(tenant, &budget_of(budget), hour)
    }
}

/// A tenant for `Lane.identify_by`.
#[pyclass(frozen)]
pub struct LaneTenant {
    name: String,
    models: Vec<String>,
    is_disabled: bool,
    is_guarded: bool,
    weight: i64,
    priority_limit: Option<i64>,
    prices: Vec<PriceTuple>,
    budget: BudgetTuple,
    output_tokens: i64,
    limits: LimitsTuple,
    shared_limits: Option<LimitsTuple>,
    keys: Vec<KeyTuple>,
}

#[pymethods]
impl LaneTenant {
    #[new]
    #[pyo3(signature = (
        *, name, models, is_disabled, is_guarded, weight, priority_limit, prices, budget, output_tokens, limits, shared_limits, keys
    ))]
    #[allow(clippy::too_many_arguments)] // all by name
    fn new(
        name: String,
        models: Vec<String>,
        is_disabled: bool,
        is_guarded: bool,
        weight: i64,
        priority_limit: Option<i64>,
        prices: Vec<PriceTuple>,
        budget: BudgetTuple,
        output_tokens: i64,
        limits: LimitsTuple,
        shared_limits: Option<LimitsTuple>,
        keys: Vec<KeyTuple>,
    ) -> Self {
        LaneTenant {
            name,
            models,
            is_disabled,
            is_guarded,
            weight,
            priority_limit,
            prices,
            budget,
            output_tokens,
            limits,
            shared_limits,
            keys,
        }
    }
}

impl LaneTenant {
    /// Its keys, which hold the tenant.
    pub fn keys(&self, quotas: &Mutex<registry::Quotas>, salt: &str, now_s: f64) -> Vec<TenantKey> {
        let client = format!("tenant:{}", self.name);
        let tenant = Arc::new(tenants::Tenant {
            name: self.name.as_str().into(),
            pseudonym: pseudonym(client.as_bytes(), salt),
            client: client.into(),
            models: self.models.clone(),
            is_disabled: self.is_disabled,
            is_guarded: self.is_guarded,
            weight: self.weight,
            priority_limit: self.priority_limit,
            prices: self.prices.iter().cloned().map(price_of_tuple).collect(),
            budget: budget_of(self.budget),
            output_tokens: self.output_tokens,
            quota: locked(quotas).of(&self.name, &limits_of(self.limits), now_s),
            shared_limits: self.shared_limits.map(limits_of),
        });
        let key = |(id, hash, expires_s): &KeyTuple| TenantKey {
            tenant: tenant.clone(),
            id: id.as_str().into(),
            hash: hash.clone(),
            expires_s: *expires_s,
        };
        self.keys.iter().map(key).collect()
    }
}

/// Whether one of the patterns of a tenant's models fits one of the names.
#[pyfunction]
pub fn may_use(patterns: Vec<String>, names: Vec<String>) -> bool {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    tenants::may_use(&patterns, &names)
}

/// The hours in which day and month of an hour begin.
#[pyfunction]
pub fn periods_of(hour: i64) -> (i64, i64) {
    (periods::day_begin(hour), periods::month_begin(hour))
}

/// Which of the tenants has the key of a request, by its name and the key's id. Raises NotSure: Python decides.
#[pyfunction]
pub fn identify(
    tenants: Vec<PyRef<'_, LaneTenant>>,
    pepper: &[u8],
    headers: Vec<(String, Vec<u8>)>,
    now_s: f64,
) -> PyResult<(String, String)> {
    let quotas = Mutex::default();
    let keys = tenants.iter().flat_map(|one| one.keys(&quotas, "", now_s)).collect();
    let listed: Vec<httparse::Header<'_>> =
        headers.iter().map(|(name, value)| httparse::Header { name, value }).collect();
    let found = tenants::TenantTable::new(0, pepper, keys).identify(&listed, now_s);
    let found = found.map_err(super::twins::NotSure::new_err)?;
    Ok((found.tenant.name.to_string(), found.key.to_string()))
}
