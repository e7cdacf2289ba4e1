//! Requests in flight in the fast lane, by endpoint and by revision, and what became of them since Python looked last.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::activity::RouteActivity;
use crate::handover::locked;
use crate::ledger::charges::Saved;
use crate::telemetry::metrics::Times;

/// Clients of successes that are remembered of a revision: as many results as the failsafe looks at, and more.
const MAX_CLIENTS: usize = 256;

/// One endpoint, as long as a table has it or a request is there.
#[derive(Debug)]
pub struct Endpoint {
    pub url: String,
    pub address: SocketAddr,
    /// As it is sent: `host:port`.
    pub host: String,
    /// Before the path of each request.
    pub prefix: String,
    /// Requests of clients there, of each lane.
    pub of_lane: AtomicI64,
    pub of_python: AtomicI64,
    /// Responses that are no failure, since Python looked last.
    pub successes: AtomicU64,
    ejected_until: Mutex<Option<Instant>>,
    /// Of tenants with requests there.
    of_tenants: Mutex<HashMap<String, TenantCounts>>,
}

/// Requests of one tenant at an endpoint, of each lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCounts {
    pub of_lane: i64,
    pub of_python: i64,
}

impl TenantCounts {
    pub fn total(self) -> u64 {
        u64::try_from(self.of_lane + self.of_python).unwrap_or(0)
    }
}

impl Endpoint {
    pub fn new(url: &str, address: SocketAddr, host: &str, prefix: &str) -> Self {
        Endpoint {
            url: url.to_owned(),
            address,
            host: host.to_owned(),
            prefix: prefix.to_owned(),
            of_lane: AtomicI64::new(0),
            of_python: AtomicI64::new(0),
            successes: AtomicU64::new(0),
            ejected_until: Mutex::new(None),
            of_tenants: Mutex::default(),
        }
    }

    /// Requests of clients there.
    pub fn load(&self) -> u64 {
        let load = self.of_lane.load(Ordering::SeqCst) + self.of_python.load(Ordering::SeqCst);
        u64::try_from(load).unwrap_or(0)
    }

    /// Requests of a tenant there.
    pub fn of_tenant(&self, tenant: &str) -> TenantCounts {
        locked(&self.of_tenants).get(tenant).copied().unwrap_or_default()
    }

    /// Changes the counts of a tenant. One without requests is forgotten.
    pub fn count_tenant(&self, tenant: &str, change: impl FnOnce(&mut TenantCounts)) {
        let mut all = locked(&self.of_tenants);
        let mut counts = all.get(tenant).copied().unwrap_or_default();
        change(&mut counts);
        if counts == TenantCounts::default() {
            all.remove(tenant);
        } else if let Some(known) = all.get_mut(tenant) {
            *known = counts;
        } else {
            all.insert(tenant.to_owned(), counts);
        }
    }

    /// It gets no requests until then if there are others. Successes before are no evidence afterwards.
    pub fn eject(&self, until: Option<Instant>) {
        let mut now = locked(&self.ejected_until);
        if now.is_some() != until.is_some() {
            self.successes.store(0, Ordering::SeqCst);
        }
        *now = until;
    }

    pub fn is_ejected(&self) -> bool {
        locked(&self.ejected_until).is_some_and(|until| Instant::now() < until)
    }
}

/// What is counted of one revision since Python took it last.
#[derive(Clone, Debug, Default)]
pub struct RevisionCounts {
    /// First attempts.
    pub requests: u64,
    /// Responses that endpoints began well.
    pub answered: u64,
    /// Requests that ended with a whole response, and those whose client left before.
    pub ok: u64,
    pub left: u64,
    /// Clients of the last responses, the latest one last.
    pub clients: VecDeque<Arc<str>>,
    pub seconds: Times,
    pub ttft: Times,
    /// Requests that got copies of kept responses, and what these did not cost.
    pub hits: u64,
    pub saved: Saved,
    /// Bytes of prompts that their endpoints had seen, and of those that they had not.
    pub prompt_bytes: [u64; 2],
}

/// One revision of a route.
#[derive(Debug)]
pub struct Revision {
    pub route: String,
    /// By which clients request the route.
    pub model: String,
    pub revision: String,
    pub in_flight: AtomicI64,
    counts: Mutex<RevisionCounts>,
}

impl Revision {
    pub fn new(route: &str, model: &str, revision: &str) -> Self {
        Revision {
            route: route.to_owned(),
            model: model.to_owned(),
            revision: revision.to_owned(),
            in_flight: AtomicI64::new(0),
            counts: Mutex::default(),
        }
    }

    /// Changes the counts.
    pub fn count(&self, change: impl FnOnce(&mut RevisionCounts)) {
        change(&mut locked(&self.counts));
    }

    pub fn has_counts(&self) -> bool {
        {
            let counts = locked(&self.counts);
            counts.requests + counts.ok + counts.left > 0
        }
    }

    pub fn take(&self) -> RevisionCounts {
        std::mem::take(&mut *locked(&self.counts))
    }
}

impl RevisionCounts {
    pub fn answered_to(&mut self, client: &Arc<str>) {
        self.answered += 1;
        if self.clients.len() >= MAX_CLIENTS {
            self.clients.pop_front();
        }
        self.clients.push_back(client.clone());
    }
}

/// A request at an endpoint: counted as in flight, there and in its revision and its route, until this is dropped.
#[derive(Debug)]
pub struct Flight {
    pub endpoint: Arc<Endpoint>,
    pub revision: Arc<Revision>,
    pub activity: Arc<RouteActivity>,
    /// Whose request it is.
    tenant: Option<Arc<str>>,
}

impl Flight {
    pub fn begin(
        endpoint: &Arc<Endpoint>,
        revision: &Arc<Revision>,
        activity: &Arc<RouteActivity>,
        tenant: Option<Arc<str>>,
    ) -> Self {
        activity.enter();
        revision.in_flight.fetch_add(1, Ordering::SeqCst);
        endpoint.of_lane.fetch_add(1, Ordering::SeqCst);
        if let Some(tenant) = &tenant {
            endpoint.count_tenant(tenant, |counts| counts.of_lane += 1);
        }
        Flight { endpoint: endpoint.clone(), revision: revision.clone(), activity: activity.clone(), tenant }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(tenant) = &self.tenant {
            self.endpoint.count_tenant(tenant, |counts| counts.of_lane -= 1);
        }
        self.endpoint.of_lane.fetch_sub(1, Ordering::SeqCst);
        self.revision.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.activity.leave();
    }
}
