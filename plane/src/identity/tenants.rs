//! The tenants of the fast lane, as Python published them, and which of them sends a request.

use std::collections::HashMap;
use std::sync::Arc;

use super::api_keys::{credentials, key_id, Credentials, KeyHash, Pepper};
use crate::ledger::spending::Budget;
use crate::quotas::prices::Price;
use crate::quotas::registry::SharedQuota;
use crate::quotas::tenant::Limits;
use crate::wire::headers::Headers;

const EVERY_MODEL: &str = "*";

/// One tenant.
#[derive(Debug)]
pub struct Tenant {
    pub name: Arc<str>,
    /// For which memory and samples of its requests are counted.
    pub client: Arc<str>,
    /// What servers get in place of its name.
    pub pseudonym: String,
    pub models: Vec<String>,
    pub is_disabled: bool,
    /// Guards look at its requests, which Python has called.
    pub is_guarded: bool,
    pub weight: i64,
    /// None: that of the gateway.
    pub priority_limit: Option<i64>,
    pub prices: Vec<Price>,
    /// This gateway's part.
    pub budget: Budget,
    /// That a request without a limit of its own reserves.
    pub output_tokens: i64,
    pub quota: SharedQuota,
    /// The limits of all gateways together, where its requests are counted with them.
    pub shared_limits: Option<Limits>,
}

/// An API key of a tenant. `expires_s`: Unix time; None: never.
#[derive(Debug)]
pub struct TenantKey {
    pub tenant: Arc<Tenant>,
    pub id: Arc<str>,
    pub hash: String,
    pub expires_s: Option<f64>,
}

/// Keys with the same id, the older tenant's first, and their hashes in the same order.
#[derive(Default)]
struct Entries {
    keys: Vec<TenantKey>,
    hashes: Vec<KeyHash>,
}

/// One state of all tenants; a request is authenticated by exactly one of them.
pub struct TenantTable {
    /// Which publication it is.
    pub number: u64,
    /// None: no key is valid.
    pepper: Option<Pepper>,
    keys: HashMap<Arc<str>, Entries>,
}

/// Who sends a request.
#[derive(Clone, Debug)]
pub struct Identity {
    pub tenant: Arc<Tenant>,
    pub key: Arc<str>,
    /// The table by which it was found.
    pub table: u64,
}

impl std::fmt::Debug for TenantTable {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TenantTable({})", self.number) // hashes of keys are no one's business
    }
}

impl Tenant {
    /// Whether the tenant may use a model with these names: `namespace/name`, and the short one if it has that.
    pub fn may_use(&self, names: &[&str]) -> bool {
        may_use(&self.models, names)
    }
}

/// Whether one of the patterns fits one of the names.
pub fn may_use(patterns: &[String], names: &[&str]) -> bool {
    patterns.iter().any(|pattern| pattern == EVERY_MODEL || names.iter().any(|name| fits(pattern, name)))
}

/// Whether a pattern fits a name. Without a slash it fits short names, so it opens no namespace.
fn fits(pattern: &str, name: &str) -> bool {
    if pattern.contains('/') != name.contains('/') {
        return false;
    }
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

impl TenantTable {
    /// `keys`: the older tenant's first. One whose hash is written otherwise is no key.
    pub fn new(number: u64, pepper: &[u8], keys: Vec<TenantKey>) -> Self {
        let mut by_id: HashMap<Arc<str>, Entries> = HashMap::new();
        for key in keys {
            let Some(hash) = KeyHash::read(&key.hash) else { continue };
            let entries = by_id.entry(key.id.clone()).or_default();
            entries.keys.push(key);
            entries.hashes.push(hash);
        }
        TenantTable { number, pepper: Pepper::new(pepper), keys: by_id }
    }

    /// Who sends a request with these headers. `now_s`: Unix time.
    ///
    /// # Errors
    /// Why Python decides: it refuses keys, verifies tokens, and knows who needs no key.
    pub fn identify(&self, headers: Headers<'_>, now_s: f64) -> Result<Identity, &'static str> {
        match credentials(headers).map_err(|why| why.0)? {
            Credentials::Missing => Err("anonymous"),
            Credentials::Key(key) => match self.by_key(key, now_s) {
                Some(identity) if identity.tenant.is_guarded => Err("guards"),
                found => found.ok_or("key"),
            },
        }
    }

    fn by_key(&self, key: &str, now_s: f64) -> Option<Identity> {
        let entries = self.keys.get(key_id(key)?)?;
        let at = self.pepper.as_ref()?.find(key, &entries.hashes)?;
        let found = entries.keys.get(at)?;
        let is_valid = found.expires_s.is_none_or(|end_s| now_s < end_s) && !found.tenant.is_disabled;
        is_valid.then(|| Identity { tenant: found.tenant.clone(), key: found.id.clone(), table: self.number })
    }
}

impl Identity {
    /// The sticky key of its requests without a session.
    pub fn session(&self) -> String {
        format!("key:{}/{}", self.tenant.name, self.key)
    }
}
