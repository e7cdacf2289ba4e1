//! Requests in flight in the fast lane, by endpoint and by revision, and what became of them since Python looked last.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::activity::RouteActivity;
use crate::handover::locked;
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
        }
    }

    /// Requests of clients there.
    pub fn load(&self) -> u64 {
        let load = self.of_lane.load(Ordering::SeqCst) + self.of_python.load(Ordering::SeqCst);
        u64::try_from(load).unwrap_or(0)
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
}

impl Flight {
    pub fn begin(endpoint: &Arc<Endpoint>, revision: &Arc<Revision>, activity: &Arc<RouteActivity>) -> Self {
        activity.enter();
        revision.in_flight.fetch_add(1, Ordering::SeqCst);
        endpoint.of_lane.fetch_add(1, Ordering::SeqCst);
        Flight { endpoint: endpoint.clone(), revision: revision.clone(), activity: activity.clone() }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.endpoint.of_lane.fetch_sub(1, Ordering::SeqCst);
        self.revision.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.activity.leave();
    }
}
