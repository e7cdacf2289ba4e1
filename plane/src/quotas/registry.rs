//! The quotas of all tenants in one process, of which both lanes take.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use super::tenant::{Limits, TenantQuota};
use crate::handover::locked;

/// The quota of one tenant.
pub type SharedQuota = Arc<Mutex<TenantQuota>>;

/// The quota of each tenant. It is kept while the tenant exists, and longer while its buckets are not full.
#[derive(Debug, Default)]
pub struct Quotas(HashMap<String, SharedQuota>);

impl Quotas {
    /// The quota of a tenant, with these limits from now on.
    pub fn of(&mut self, tenant: &str, limits: &Limits, now_s: f64) -> SharedQuota {
        let made = || Arc::new(Mutex::new(TenantQuota::new(*limits)));
        let quota = self.0.entry(tenant.to_owned()).or_insert_with(made);
        let mut now = locked(quota);
        if now.limits() != limits {
            now.change(*limits, now_s);
        }
        drop(now);
        quota.clone()
    }

    /// The tenants that have one.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    pub fn find(&self, tenant: &str) -> Option<SharedQuota> {
        self.0.get(tenant).cloned()
    }

    /// Drops the quotas of all other tenants, except where a bucket is not full or a request runs.
    pub fn forget_others(&mut self, tenants: &HashSet<String>, now_s: f64) {
        self.0.retain(|tenant, quota| tenants.contains(tenant) || !locked(quota).is_idle(now_s));
    }
}
