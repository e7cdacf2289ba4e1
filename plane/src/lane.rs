//! The fast lane: what its thread and Python share. The thread serves plain requests by it; Python publishes tables and
//! takes counts. Nothing here waits: each lock is held for moments, and never across an await.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::balancing::activity::RouteActivity;
use crate::balancing::in_flight::{Endpoint, Revision, RevisionCounts};
use crate::balancing::prefix_affinity::PrefixRouting;
use crate::caching::copies::{CacheRule, Copies};
use crate::forwarding::poison::Suspects;
use crate::forwarding::relay::EventRelay;
use crate::handover::{locked, Place};
use crate::identity::tenants::TenantTable;
use crate::judging::samples::GenerationSamples;
use crate::keyed_lookup::Digest;
use crate::ledger::charges::{Charges, Payer, Sums};
use crate::ledger::spending::Spending;
use crate::limits::places::Places;
use crate::quotas::gcra::{Bucket, Rate};
use crate::quotas::registry::Quotas;
use crate::routing::router::Backend;
use crate::routing::table::{Named, Route, Served, Table};
use crate::sharing::counters::Waiting;
use crate::telemetry::metrics::HandOvers;
use crate::upstream::pool::EndpointPool;
use crate::upstream::tenant_proof::{SigningKey, TenantSigner};
use crate::wire::request_fields::Sources;

/// Why no request is served here: the gateway ends.
pub const DRAINING: &str = "draining";

/// What the lane does and does not, for all requests.
#[derive(Clone, Debug)]
pub struct Settings {
    pub paths: Vec<String>,
    pub max_body_bytes: usize,
    pub max_head_bytes: usize,
    /// Of a response that is relayed whole.
    pub max_response_bytes: usize,
    pub sticky: Sources,
    pub tenants: Sources,
    pub tenant_salt: String,
    /// Whether memory and samples are counted by API key, else by address.
    pub shares_by_key: bool,
    pub priority_limit: i64,
    pub connect_timeout: Duration,
    pub stall_timeout: Duration,
    /// After it a request that has not come whole, or has no response yet, is Python's.
    pub patience: Duration,
    /// `Server` of a response that has none.
    pub server: String,
    pub seconds_bounds: Vec<f64>,
    pub ttft_bounds: Vec<f64>,
    /// Whether requests have lines in an access log, and of which share of those that succeed, in 16^-8.
    pub logs: bool,
    pub log_below: u64,
    /// One of so many requests is counted again by Python; 0: none.
    pub recount_one_in: u64,
    /// So many of them wait for Python at most.
    pub max_recounts: usize,
    /// Of which share of requests spans are recorded, in 16^-8. None: there are no spans.
    pub trace_below: Option<u64>,
    /// At most so many of them a second.
    pub traces_per_s: i64,
}

/// An endpoint as Python compiled it: URL, address, `Host`, and the prefix of paths.
pub type EndpointTuple = (String, SocketAddr, String, String);

/// A route as Python compiled it.
#[derive(Debug)]
pub struct Compiled {
    pub name: String,
    pub uid: String,
    pub model: String,
    pub id: String,
    pub names: Vec<String>,
    /// Why its requests are Python's; empty: they are plain.
    pub reason: &'static str,
    pub salt: String,
    pub backends: Vec<(String, i64, Vec<EndpointTuple>)>,
    pub forwarded: Vec<String>,
    /// An engine of its endpoints knows no tenants, and Python keeps them apart there.
    pub isolates: bool,
    pub generation: Option<Arc<GenerationSamples>>,
    /// None: it keeps no responses.
    pub cache: Option<CacheRule>,
    pub prefix_affinity: bool,
    pub is_paused: bool,
    pub valid_for: Option<Duration>,
}

/// What both lanes count in one place.
#[derive(Clone, Debug)]
pub struct InBoth {
    /// Places of requests in flight.
    pub in_flight: Arc<Mutex<Places>>,
    pub quotas: Arc<Mutex<Quotas>>,
    pub spending: Arc<Mutex<Spending>>,
    pub prefixes: Arc<PrefixRouting>,
}

/// What lives longer than a table.
#[derive(Debug, Default)]
struct Live {
    endpoints: HashMap<String, Arc<Endpoint>>,
    /// By route, model and revision.
    revisions: HashMap<(String, String, String), Arc<Revision>>,
    /// By route and uid.
    activities: HashMap<(String, String), Arc<RouteActivity>>,
}

#[derive(Debug)]
pub struct Lane {
    pub settings: Settings,
    pub in_flight: Arc<Mutex<Places>>,
    pub quotas: Arc<Mutex<Quotas>>,
    pub spending: Arc<Mutex<Spending>>,
    pub prefixes: Arc<PrefixRouting>,
    /// Of requests that ended here.
    pub charges: Mutex<Charges>,
    /// Calls to the counters that gateways share.
    pub waiting: Waiting,
    /// Of responses that Python keeps.
    pub copies: Mutex<Copies>,
    /// None: no request has an identity.
    tenants: Mutex<Option<Arc<TenantTable>>>,
    /// Bytes of requests and responses in this lane, by owner.
    pub bytes: Mutex<Places>,
    pub suspects: Mutex<Suspects>,
    pub hand_overs: Mutex<HandOvers>,
    /// Held from the last write of a response until its request is counted: who has the response finds it in the counts.
    pub ending: Mutex<()>,
    /// Of requests with spans; None: no one is recorded.
    traced: Mutex<Option<Bucket>>,
    pub pool: EndpointPool,
    /// None: the release has no keys, and nothing is proved.
    pub signer: Mutex<Option<TenantSigner>>,
    /// False: no request is served here: its gateway drains, or needs what the lane has not.
    is_open: Mutex<Result<(), &'static str>>,
    /// Wakes requests when the gateway begins to drain.
    drains: Notify,
    table: Mutex<Arc<Table>>,
    live: Mutex<Live>,
    /// Connections that Python gives back, with no request on them.
    returned: Mutex<Vec<(std::net::TcpStream, Place)>>,
    /// Streams of Python's whose events are to be relayed; None: there is no thread for them.
    relays: Mutex<Option<Vec<Arc<EventRelay>>>>,
    /// There are some of either.
    pub has_returned: Notify,
    /// Python's clock, and when it showed this.
    clock: (f64, Instant),
}

/// Counts since Python took them last: of each revision that has some, and of each endpoint with successes.
#[derive(Debug, Default)]
pub struct Counts {
    pub revisions: Vec<(Arc<Revision>, RevisionCounts)>,
    pub endpoints: Vec<(String, u64)>,
    pub hand_overs: Vec<(String, &'static str, u64)>,
    pub charges: Vec<(Payer, Sums)>,
    /// Copies of kept responses that requests got.
    pub used_copies: Vec<Digest>,
}

impl Lane {
    /// `max_bytes`, `percentage`: of memory for requests, in all and of one client. `now_s`: of Python's clock.
    pub fn new(settings: Settings, shared: InBoth, max_bytes: u64, percentage: u64, now_s: f64) -> Self {
        let traces = Rate::new(settings.traces_per_s.saturating_mul(60), settings.traces_per_s, 1);
        Lane {
            traced: Mutex::new(traces.map(Bucket::new)),
            settings,
            in_flight: shared.in_flight,
            quotas: shared.quotas,
            spending: shared.spending,
            prefixes: shared.prefixes,
            charges: Mutex::default(),
            waiting: Waiting::default(),
            copies: Mutex::default(),
            tenants: Mutex::default(),
            bytes: Mutex::new(Places::new(max_bytes, percentage, 0)),
            suspects: Mutex::default(),
            hand_overs: Mutex::default(),
            ending: Mutex::default(),
            pool: EndpointPool::default(),
            signer: Mutex::new(None),
            is_open: Mutex::new(Err("table")),
            drains: Notify::new(),
            table: Mutex::default(),
            live: Mutex::default(),
            returned: Mutex::default(),
            relays: Mutex::default(),
            has_returned: Notify::new(),
            clock: (now_s, Instant::now()),
        }
    }

    /// Seconds of Python's clock.
    pub fn now_s(&self) -> f64 {
        self.clock.0 + self.clock.1.elapsed().as_secs_f64()
    }

    /// Whether one more request may have spans now. Their cost is bounded, and not that of a share of any load.
    pub fn may_trace(&self) -> bool {
        let now_s = self.now_s();
        match locked(&self.traced).as_mut() {
            Some(bucket) if bucket.wait_s(1, now_s) == 0.0 => {
                bucket.take(1, now_s);
                true
            }
            _ => false,
        }
    }

    /// A connection is the lane's again.
    pub fn give_back(&self, stream: std::net::TcpStream, place: Place) {
        locked(&self.returned).push((stream, place));
        self.has_returned.notify_one();
    }

    /// Connections that were given back since the last call.
    pub fn take_returned(&self) -> Vec<(std::net::TcpStream, Place)> {
        std::mem::take(&mut *locked(&self.returned))
    }

    /// The thread runs a relay from here on. False: there is none.
    pub fn relay(&self, relay: Arc<EventRelay>) -> bool {
        let mut relays = locked(&self.relays);
        let Some(waiting) = relays.as_mut() else { return false };
        waiting.push(relay);
        self.has_returned.notify_one();
        true
    }

    /// Relays since the last call, by the thread that runs them.
    pub fn take_relays(&self) -> Vec<Arc<EventRelay>> {
        locked(&self.relays).replace(Vec::new()).unwrap_or_default()
    }

    /// The thread has ended. Returns the relays that it has not taken.
    pub fn close_relays(&self) -> Vec<Arc<EventRelay>> {
        locked(&self.relays).take().unwrap_or_default()
    }

    /// Whether requests are served here at all; an error says why not.
    pub fn is_open(&self) -> Result<(), &'static str> {
        *locked(&self.is_open)
    }

    /// `reason`: why no request is served here; None: they are.
    pub fn open(&self, reason: Option<&'static str>) {
        *locked(&self.is_open) = reason.map_or(Ok(()), Err);
        if reason == Some(DRAINING) {
            self.drains.notify_waiters();
        }
    }

    /// Returns when the gateway drains: what runs then is Python's, which bounds the time for it and says why it ends.
    pub async fn draining(&self) {
        let begins = self.drains.notified();
        if self.is_open() != Err(DRAINING) {
            begins.await;
        }
    }

    pub fn table(&self) -> Arc<Table> {
        locked(&self.table).clone()
    }

    /// The tenants by which requests are authenticated; None: no request has an identity.
    pub fn tenants(&self) -> Option<Arc<TenantTable>> {
        locked(&self.tenants).clone()
    }

    /// Replaces the tenants. When this returns, no request is authenticated by the former ones any more.
    pub fn identify_by(&self, tenants: Option<TenantTable>) {
        let former = std::mem::replace(&mut *locked(&self.tenants), tenants.map(Arc::new));
        drop(former); // not under the lock
    }

    /// The key that proves tenants; None: nothing is proved.
    pub fn sign_with(&self, key: Option<SigningKey>) {
        *locked(&self.signer) = key.map(TenantSigner::new);
    }

    /// Replaces the table. When this returns, no request is routed by the former one any more.
    pub fn publish(&self, compiled: Vec<Compiled>) {
        let mut live = locked(&self.live);
        let mut table = Table::default();
        for one in compiled {
            let (names, id, reason) = (one.names.clone(), one.id.clone(), one.reason);
            let named = if reason.is_empty() {
                let route = Arc::new(live.route(one));
                table.routes.push(route.clone());
                Named::Plain(route)
            } else {
                Named::Other(id, reason)
            };
            for name in names {
                table.names.insert(name, named.clone());
            }
        }
        *locked(&self.table) = Arc::new(table); // drops the former one, unless a request has it
        live.forget();
    }

    pub fn pause(&self, route: &str, is_paused: bool) {
        self.table().routes.iter().filter(|one| one.name == route).for_each(|one| one.pause(is_paused));
    }

    /// The weights of all routes are in force for so long.
    pub fn renew(&self, valid_for: Duration) {
        let until = Instant::now().checked_add(valid_for);
        self.table().routes.iter().for_each(|one| one.renew(until));
    }

    /// Python's requests at an endpoint are so many now.
    pub fn count_python(&self, url: &str, count: i64) {
        if let Some(endpoint) = locked(&self.live).endpoints.get(url) {
            endpoint.of_python.store(count, Ordering::SeqCst);
        }
    }

    /// Python's requests of a tenant at an endpoint are so many now.
    pub fn count_python_of(&self, url: &str, tenant: &str, count: i64) {
        if let Some(endpoint) = locked(&self.live).endpoints.get(url) {
            endpoint.count_tenant(tenant, |counts| counts.of_python = count);
        }
    }

    /// The lane's requests of a tenant at an endpoint.
    pub fn of_tenant_at(&self, url: &str, tenant: &str) -> i64 {
        locked(&self.live).endpoints.get(url).map_or(0, |one| one.of_tenant(tenant).of_lane)
    }

    /// The lane's requests at an endpoint.
    pub fn at(&self, url: &str) -> i64 {
        locked(&self.live).endpoints.get(url).map_or(0, |one| one.of_lane.load(Ordering::SeqCst))
    }

    /// Replaces the endpoints that are ejected, with how long they are.
    pub fn eject(&self, ejected: &HashMap<String, Duration>) {
        let now = Instant::now();
        for (url, endpoint) in &locked(&self.live).endpoints {
            endpoint.eject(ejected.get(url).and_then(|left| now.checked_add(*left)));
        }
    }

    /// The lane's requests in flight by route, model and revision, where there are some.
    pub fn running(&self) -> Vec<(String, String, String, i64)> {
        let _ending = locked(&self.ending);
        let live = locked(&self.live);
        let all = live.revisions.values().map(|one| (one, one.in_flight.load(Ordering::SeqCst)));
        all.filter(|(_, count)| *count > 0)
            .map(|(one, count)| (one.route.clone(), one.model.clone(), one.revision.clone(), count))
            .collect()
    }

    /// The lane's requests of a route object in progress, and seconds since the last one ended.
    pub fn activity(&self, route: &str, uid: &str) -> (i64, Option<f64>) {
        let key = (route.to_owned(), uid.to_owned());
        let _ending = locked(&self.ending);
        locked(&self.live).activities.get(&key).map_or((0, None), |one| one.report())
    }

    pub fn take(&self) -> Counts {
        let _ending = locked(&self.ending);
        let live = locked(&self.live);
        let counted = live.revisions.values().map(|one| (one.clone(), one.take()));
        let revisions = counted.filter(|(_, counts)| counts.requests + counts.ok + counts.left > 0).collect();
        let successes = live.endpoints.values().map(|one| (one.url.clone(), one.successes.swap(0, Ordering::SeqCst)));
        let endpoints = successes.filter(|(_, count)| *count > 0).collect();
        drop(live);
        let (hand_overs, charges) = (locked(&self.hand_overs).take(), locked(&self.charges).take());
        let used_copies = locked(&self.copies).take_used();
        Counts { revisions, endpoints, hand_overs, charges, used_copies }
    }
}

impl Live {
    fn route(&mut self, one: Compiled) -> Route {
        let mut backends = Vec::new();
        let mut served = Vec::new();
        for (revision, weight, endpoints) in one.backends {
            let key = (one.name.clone(), one.id.clone(), revision.clone());
            let made = || Arc::new(Revision::new(&one.name, &one.id, &revision));
            let counted = self.revisions.entry(key).or_insert_with(made).clone();
            let endpoints = endpoints.into_iter().map(|endpoint| self.endpoint(endpoint)).collect();
            served.push(Served { revision: counted, endpoints });
            backends.push(Backend { revision, weight });
        }
        let key = (one.name.clone(), one.uid.clone());
        let activity = self.activities.entry(key).or_default().clone();
        let names = [one.name, one.model, one.id];
        let mut route = Route::new(names, one.salt, backends, served, one.forwarded, activity, one.generation);
        (route.isolates, route.cache, route.prefix_affinity) = (one.isolates, one.cache, one.prefix_affinity);
        route.pause(one.is_paused);
        route.renew(one.valid_for.and_then(|left| Instant::now().checked_add(left)));
        route
    }

    fn endpoint(&mut self, (url, address, host, prefix): EndpointTuple) -> Arc<Endpoint> {
        let made = || Arc::new(Endpoint::new(&url, address, &host, &prefix));
        self.endpoints.entry(url.clone()).or_insert_with(made).clone()
    }

    /// Forgets what neither a table nor a request has, and has no counts left to take.
    fn forget(&mut self) {
        let is_used = |count: usize| count > 1;
        self.endpoints.retain(|_, one| is_used(Arc::strong_count(one)));
        self.activities.retain(|_, one| is_used(Arc::strong_count(one)));
        self.revisions.retain(|_, one| is_used(Arc::strong_count(one)) || one.has_counts());
    }
}
