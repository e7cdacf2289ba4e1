//! The fast lane as Python sees it: it publishes tables, and takes counts.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::IntoRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::listener::{duration, Places};
use super::prefixes::{Prefill, PrefixRouting};
use super::tenants::{LaneTenant, Quotas, Reservation, Spending};
use crate::caching::copies::{parts_of, CacheRule, KeptResponse, OwnId};
use crate::handover::{self, locked};
use crate::identity::tenants::TenantTable;
use crate::judging::samples::GenerationSamples;
use crate::judging::units::{self, SessionMemory};
use crate::lane::{self, Compiled, InBoth, Settings};
use crate::ledger::charges::Saved;
use crate::quotas::tenant::LimitHeaders;
use crate::quotas::usage::Usage;
use crate::routing::table::Named;
use crate::serving::admission::Reserved;
use crate::serving::hits::find_at;
use crate::telemetry::access_log;
use crate::telemetry::metrics::Times;
use crate::upstream::tenant_proof::SigningKey;
use crate::wire::request_fields::Sources;
use crate::wire::responses;

type Data = Cow<'static, [u8]>;
type EndpointTuple = (String, String, u16, String, String);
type BackendTuple = (String, i64, Vec<EndpointTuple>);
type TimesTuple = (Vec<u64>, f64);
type Strata = HashMap<&'static str, Vec<u64>>;
type SampledTuple = (u64, u64, u64, Strata, Strata);

/// Reasons that Python gives; metrics have them as they are.
const REASONS: [&str; 22] = [
    "",
    "tenants",
    "recount",
    "draining",
    "table",
    "off",
    "asleep",
    "copied",
    "feedback",
    "inference_log",
    "header_routes",
    "endpoints",
    "predictions",
    "objectives",
    "fallback",
    "circuit_breaker",
    "degradation",
    "cache",
    "guards",
    "adapter",
    "model_route",
    "experiment",
];

fn reason(given: &str) -> PyResult<&'static str> {
    let known = REASONS.iter().find(|known| **known == given);
    known.copied().ok_or_else(|| PyValueError::new_err("reason: it is none of those that metrics have"))
}

fn sources(names: &[String]) -> Sources {
    let has = |name: &str| names.iter().any(|one| one == name);
    Sources { session: has("session"), user: has("user"), key: has("key") }
}

/// The sessions of all generations, with one limit.
#[pyclass(frozen)]
pub struct Sessions(Arc<Mutex<SessionMemory>>);

#[pymethods]
impl Sessions {
    #[new]
    fn new(limit: usize) -> Self {
        Sessions(Arc::new(Mutex::new(SessionMemory::new(limit))))
    }

    #[getter]
    fn taken(&self) -> usize {
        locked(&self.0).taken()
    }
}

#[pyclass(frozen)]
pub struct Units(units::Units);

#[pymethods]
impl Units {
    #[new]
    fn new(memory: &Sessions, weights: HashMap<String, i64>, begun_s: f64) -> Self {
        Units(units::Units::new(memory.0.clone(), weights, begun_s))
    }

    fn assign(&self, revision: &str, key: &[u8], client: &[u8], now_s: f64) -> (bool, bool) {
        self.0.assign(revision, key, client, now_s)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.0.has(key)
    }

    fn remember(&self, key: &[u8]) {
        self.0.remember(key);
    }

    fn first_end(&self, key: &[u8]) -> bool {
        self.0.first_end(key)
    }

    fn first(&self, key: &[u8], name: &str) -> bool {
        self.0.first(key, name)
    }

    fn end(&self) {
        self.0.end();
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

#[pyclass(frozen)]
pub struct Generation(Arc<GenerationSamples>);

#[pymethods]
impl Generation {
    #[new]
    fn new(units: &Units, bounds: Vec<f64>, keeps_open: bool) -> Self {
        Generation(Arc::new(GenerationSamples::new(units.0.clone(), bounds, keeps_open)))
    }

    fn take(&self) -> HashMap<String, SampledTuple> {
        let all = self.0.take().into_iter();
        all.map(|(revision, one)| (revision, (one.assigned, one.requests, one.units, one.slow, one.late))).collect()
    }
}

#[pyclass(frozen)]
pub struct Lane(pub Arc<lane::Lane>);

#[pymethods]
impl Lane {
    #[new]
    #[pyo3(signature = (
        *, paths, max_body_bytes, max_head_bytes, max_response_bytes, sticky_by, tenant_by, tenant_salt, shares_by_key,
        priority_limit, connect_timeout_s, stall_timeout_s, patience_s, server, seconds_bounds, ttft_bounds, logs,
        log_below, recount_one_in, max_recounts, trace_below, traces_per_s, in_flight, quotas, spending,
        prefixes, max_bytes, percentage, now_s
    ))]
    #[allow(clippy::too_many_arguments)] // all by name
    fn new(
        paths: Vec<String>,
        max_body_bytes: usize,
        max_head_bytes: usize,
        max_response_bytes: usize,
        sticky_by: Vec<String>,
        tenant_by: Vec<String>,
        tenant_salt: String,
        shares_by_key: bool,
        priority_limit: i64,
        connect_timeout_s: f64,
        stall_timeout_s: f64,
        patience_s: f64,
        server: String,
        seconds_bounds: Vec<f64>,
        ttft_bounds: Vec<f64>,
        logs: bool,
        log_below: u64,
        recount_one_in: u64,
        max_recounts: usize,
        trace_below: Option<u64>,
        traces_per_s: i64,
        in_flight: &Places,
        quotas: &Quotas,
        spending: &Spending,
        prefixes: &PrefixRouting,
        max_bytes: u64,
        percentage: u64,
        now_s: f64,
    ) -> PyResult<Self> {
        let settings = Settings {
            paths,
            max_body_bytes,
            max_head_bytes,
            max_response_bytes,
            sticky: sources(&sticky_by),
            tenants: sources(&tenant_by),
            tenant_salt,
            shares_by_key,
            priority_limit,
            connect_timeout: duration("connect_timeout_s", connect_timeout_s)?,
            stall_timeout: duration("stall_timeout_s", stall_timeout_s)?,
            patience: duration("patience_s", patience_s)?,
            server,
            seconds_bounds,
            ttft_bounds,
            logs,
            log_below,
            recount_one_in,
            max_recounts,
            trace_below,
            traces_per_s,
        };
        let percentage = percentage.min(100);
        let shared = InBoth {
            in_flight: in_flight.0.clone(),
            quotas: quotas.0.clone(),
            spending: spending.0.clone(),
            prefixes: prefixes.0.clone(),
        };
        Ok(Lane(Arc::new(lane::Lane::new(settings, shared, max_bytes, percentage, now_s))))
    }

    fn publish(&self, routes: Vec<PyRef<'_, LaneRoute>>) -> PyResult<()> {
        let compiled = routes.iter().map(|one| one.compiled()).collect::<PyResult<_>>()?;
        self.0.publish(compiled);
        Ok(())
    }

    fn open(&self, why_closed: &str) -> PyResult<()> {
        let reason = reason(why_closed)?;
        self.0.open((!reason.is_empty()).then_some(reason));
        Ok(())
    }

    fn pause(&self, route: &str, is_paused: bool) {
        self.0.pause(route, is_paused);
    }

    fn renew(&self, valid_for_s: f64) -> PyResult<()> {
        self.0.renew(duration("valid_for_s", valid_for_s)?);
        Ok(())
    }

    /// `tenants`: in the order in which a key is theirs; None: no request has an identity.
    #[pyo3(signature = (tenants, pepper, number))]
    fn identify_by(&self, tenants: Option<Vec<PyRef<'_, LaneTenant>>>, pepper: &[u8], number: u64) {
        let (salt, now_s) = (&self.0.settings.tenant_salt, self.0.now_s());
        self.0.identify_by(tenants.map(|listed| {
            let keys = listed.iter().flat_map(|one| one.keys(&self.0.quotas, salt, now_s)).collect();
            TenantTable::new(number, pepper, keys)
        }));
    }

    fn sign_with(&self, id: String, master: Vec<u8>) {
        self.0.sign_with((!id.is_empty()).then_some(SigningKey { id, master }));
    }

    fn eject(&self, ejected: HashMap<String, f64>) -> PyResult<()> {
        let of = |(url, left_s)| Ok((url, duration("left_s", left_s)?));
        self.0.eject(&ejected.into_iter().map(of).collect::<PyResult<_>>()?);
        Ok(())
    }

    fn blame(&self, keys: HashSet<(String, String, usize)>) {
        locked(&self.0.suspects).blame(keys);
    }

    fn answered(&self, client: &str, path: &str, body: &[u8]) -> bool {
        locked(&self.0.suspects).answered(client, path, body)
    }

    fn count_python(&self, url: &str, count: i64) {
        self.0.count_python(url, count);
    }

    /// `answers`: by ticket; returns the tickets of those that no longer wait.
    fn answer(&self, answers: Vec<(u64, Option<Vec<f64>>)>) -> Vec<u64> {
        self.0.waiting.answer(answers)
    }

    fn count_python_of(&self, url: &str, tenant: &str, count: i64) {
        self.0.count_python_of(url, tenant, count);
    }

    fn of_tenant_at(&self, url: &str, tenant: &str) -> i64 {
        self.0.of_tenant_at(url, tenant)
    }

    fn at(&self, url: &str) -> i64 {
        self.0.at(url)
    }

    // `running`, `activity` and `take` wait for a response that is being written: other threads of Python run meanwhile.
    fn running(&self, py: Python<'_>) -> Vec<(String, String, String, i64)> {
        py.detach(|| self.0.running())
    }

    fn activity(&self, py: Python<'_>, route: &str, uid: &str) -> (i64, Option<f64>) {
        py.detach(|| self.0.activity(route, uid))
    }

    #[getter]
    fn held_bytes(&self) -> u64 {
        locked(&self.0.bytes).used()
    }

    fn hold_copies(&self, most_bytes: usize) {
        locked(&self.0.copies).hold(most_bytes);
    }

    /// `own_id`: bytes of the response's own id, and where they begin.
    #[pyo3(signature = (digest, *, revision, headers, body, own_id, usage, stored_s, expires_s, size_bytes))]
    #[allow(clippy::too_many_arguments)] // all by name
    fn put_copy(
        &self,
        digest: [u8; 32],
        revision: String,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
        own_id: (usize, Vec<usize>),
        usage: Option<(i64, i64, i64)>,
        stored_s: f64,
        expires_s: f64,
        size_bytes: usize,
    ) -> bool {
        let (length, begins) = own_id;
        let mut kept = KeptResponse::new(revision, &headers, body, OwnId { length, begins });
        kept.usage = usage.map(|(input_tokens, output_tokens, cached_tokens)| Usage {
            input_tokens,
            output_tokens,
            cached_tokens,
        });
        (kept.stored_s, kept.expires_s) = (stored_s, expires_s);
        locked(&self.0.copies).put(digest, kept, size_bytes)
    }

    /// What a request of a model gets at this time; None: Python decides. Returns the revision, the body and its age in
    /// seconds. `tenant`: its pseudonym.
    #[allow(clippy::too_many_arguments)] // a request
    fn find_copy(
        &self,
        model: &str,
        tenant: &str,
        key: &[u8],
        path: &str,
        headers: Vec<(String, Vec<u8>)>,
        body: &[u8],
        now_s: f64,
        unix_s: f64,
    ) -> Option<(String, Data, f64)> {
        let table = self.0.table();
        let Some(Named::Plain(route)) = table.names.get(model) else { return None };
        let listed: Vec<httparse::Header<'_>> =
            headers.iter().map(|(name, value)| httparse::Header { name, value }).collect();
        let sent = [path.as_bytes(), body];
        let lookup = parts_of(route.cache.as_ref()?, tenant, &route.name, sent, &listed);
        let found = find_at(&self.0, route, &lookup, [key, tenant.as_bytes()], [now_s, unix_s]).ok()?;
        let kept = found.kept;
        Some((kept.revision.clone(), Cow::Owned(kept.body.clone()), kept.age_s(unix_s)))
    }

    fn drop_copy(&self, digest: [u8; 32]) {
        locked(&self.0.copies).remove(&digest);
    }

    /// Bytes of copies, as Python counted them.
    #[getter]
    fn copied_bytes(&self) -> usize {
        locked(&self.0.copies).held_bytes()
    }

    fn take(&self, py: Python<'_>) -> LaneCounts {
        let counts = py.detach(|| self.0.take());
        let revisions = counts.revisions.into_iter().map(|(revision, one)| RevisionCounts {
            route: revision.route.clone(),
            model: revision.model.clone(),
            revision: revision.revision.clone(),
            requests: one.requests,
            answered: one.answered,
            ok: one.ok,
            left: one.left,
            clients: one.clients.iter().map(|client| client.to_string()).collect(),
            seconds: times(one.seconds),
            ttft: times(one.ttft),
            hits: one.hits,
            saved: saved(one.saved),
            prompt_bytes: one.prompt_bytes.into(),
        });
        let hand_overs = counts.hand_overs.into_iter().map(|(model, why, count)| (model, why.to_owned(), count));
        let charges = counts.charges.into_iter().map(|(payer, sums)| TenantCharge {
            tenant: payer.tenant.to_string(),
            key: payer.key.to_string(),
            model: payer.revision.model.clone(),
            revision: payer.revision.revision.clone(),
            hour: payer.hour,
            admitted: sums.admitted,
            requests: sums.requests,
            usage: counted(sums.usage),
            cost_nano: sums.cost_nano,
            estimated: sums.estimated,
            hits: (sums.hits.requests, sums.hits.limited, saved(sums.hits.saved)),
        });
        let used_copies = counts.used_copies.iter().map(|digest| Cow::Owned(digest.to_vec())).collect();
        LaneCounts {
            used_copies,
            revisions: revisions.collect(),
            endpoints: counts.endpoints,
            hand_overs: hand_overs.collect(),
            charges: charges.collect(),
        }
    }
}

/// Tokens, and billionths of the currency.
type SavedTuple = ((i64, i64, i64), i128);

fn saved(one: Saved) -> SavedTuple {
    (counted(one.usage), one.cost_nano)
}

fn counted(usage: Usage) -> (i64, i64, i64) {
    (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
}

fn times(one: Times) -> TimesTuple {
    (one.buckets, one.sum)
}

/// A route for `Lane.publish`.
#[pyclass(frozen)]
pub struct LaneRoute {
    name: String,
    uid: String,
    model: String,
    id: String,
    names: Vec<String>,
    reason: &'static str,
    salt: String,
    backends: Vec<BackendTuple>,
    forwarded: Vec<String>,
    isolates: bool,
    generation: Option<Arc<GenerationSamples>>,
    cache: Option<CacheRule>,
    prefix_affinity: bool,
    is_paused: bool,
    valid_for: Option<Duration>,
}

#[pymethods]
impl LaneRoute {
    #[new]
    #[pyo3(signature = (
        *, name, uid, model, id, names, reason, salt, backends, forwarded, isolates, generation, cache,
        prefix_affinity, is_paused, valid_for_s
    ))]
    #[allow(clippy::too_many_arguments)] // all by name
    fn new(
        name: String,
        uid: String,
        model: String,
        id: String,
        names: Vec<String>,
        reason: &str,
        salt: String,
        backends: Vec<BackendTuple>,
        forwarded: Vec<String>,
        isolates: bool,
        generation: Option<PyRef<'_, Generation>>,
        cache: Option<(f64, bool)>,
        prefix_affinity: bool,
        is_paused: bool,
        valid_for_s: Option<f64>,
    ) -> PyResult<Self> {
        let reason = self::reason(reason)?;
        let cache = cache.map(|(ttl_s, is_shared)| CacheRule { uid: uid.clone(), ttl_s, is_shared });
        let generation = generation.map(|one| one.0.clone());
        let valid_for = valid_for_s.map(|left_s| duration("valid_for_s", left_s)).transpose()?;
        Ok(LaneRoute {
            name,
            uid,
            model,
            id,
            names,
            reason,
            salt,
            backends,
            forwarded,
            isolates,
            generation,
            cache,
            prefix_affinity,
            is_paused,
            valid_for,
        })
    }
}

impl LaneRoute {
    fn compiled(&self) -> PyResult<Compiled> {
        let backend = |one: &BackendTuple| {
            let endpoints = one.2.iter().map(endpoint).collect::<PyResult<_>>()?;
            Ok((one.0.clone(), one.1, endpoints))
        };
        Ok(Compiled {
            name: self.name.clone(),
            uid: self.uid.clone(),
            model: self.model.clone(),
            id: self.id.clone(),
            names: self.names.clone(),
            reason: self.reason,
            salt: self.salt.clone(),
            backends: self.backends.iter().map(backend).collect::<PyResult<_>>()?,
            forwarded: self.forwarded.clone(),
            isolates: self.isolates,
            generation: self.generation.clone(),
            cache: self.cache.clone(),
            prefix_affinity: self.prefix_affinity,
            is_paused: self.is_paused,
            valid_for: self.valid_for,
        })
    }
}

fn endpoint((url, address, port, host, prefix): &EndpointTuple) -> PyResult<lane::EndpointTuple> {
    let ip: IpAddr = address.parse().map_err(|_| PyValueError::new_err("address: no address of IPv4 or IPv6"))?;
    Ok((url.clone(), SocketAddr::new(ip, *port), host.clone(), prefix.clone()))
}

#[pyclass(frozen, get_all)]
pub struct LaneCounts {
    revisions: Vec<RevisionCounts>,
    endpoints: Vec<(String, u64)>,
    hand_overs: Vec<(String, String, u64)>,
    charges: Vec<TenantCharge>,
    used_copies: Vec<Data>,
}

/// What requests of one tenant, key, model, revision and hour came to.
#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct TenantCharge {
    tenant: String,
    key: String,
    model: String,
    revision: String,
    hour: i64,
    admitted: u64,
    requests: u64,
    usage: (i64, i64, i64),
    cost_nano: i128,
    estimated: u64,
    hits: (u64, (i64, i64), SavedTuple),
}

#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct RevisionCounts {
    route: String,
    model: String,
    revision: String,
    requests: u64,
    answered: u64,
    ok: u64,
    left: u64,
    clients: Vec<String>,
    seconds: TimesTuple,
    ttft: TimesTuple,
    hits: u64,
    saved: SavedTuple,
    prompt_bytes: (u64, u64),
}

#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct LogEntry {
    is_logged: bool,
    is_traced: bool,
    id: String,
    request_id: String,
    waited_s: f64,
    owner: String,
    address: String,
    client_request_id: String,
    path: String,
    model: String,
    revision: String,
    upstream: String,
    code: u16,
    outcome: &'static str,
    ended_s: f64,
    seconds: f64,
    ttft_s: Option<f64>,
    bytes_in: usize,
    bytes_out: usize,
    tokens: Option<(i64, i64)>,
    is_estimated: bool,
    tenant: String,
    key: String,
    is_hit: bool,
}

impl From<access_log::LogEntry> for LogEntry {
    fn from(one: access_log::LogEntry) -> Self {
        LogEntry {
            is_logged: one.is_logged,
            is_traced: one.is_traced,
            id: one.id,
            request_id: one.request_id,
            waited_s: one.waited_s,
            owner: one.owner,
            address: one.address,
            client_request_id: one.client_request_id,
            path: one.path,
            model: one.model,
            revision: one.revision,
            upstream: one.upstream,
            code: one.code,
            outcome: one.outcome,
            ended_s: one.ended_s,
            seconds: one.seconds,
            ttft_s: one.ttft_s,
            bytes_in: one.bytes_in,
            bytes_out: one.bytes_out,
            tokens: one.tokens,
            is_estimated: one.is_estimated,
            tenant: one.tenant,
            key: one.key,
            is_hit: one.is_hit,
        }
    }
}

#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct Recount {
    owner: String,
    request: Data,
    response: Data,
    request_id: String,
    route: String,
    model: String,
    salt: String,
    weights: Vec<(String, i64)>,
    key: Data,
    client: String,
    own: String,
    stratum: &'static str,
    sent: Data,
    paid: Option<Paid>,
    hit: Option<RecountedHit>,
    prompt: Option<RecountedPrompt>,
}

/// A prompt, and the choice of its endpoint. `pods`: URL, load, and bytes that it has seen of the prompt and that wait
/// there; those that were excluded are left out.
#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct RecountedPrompt {
    hashes: Data,
    size: usize,
    is_cached: bool,
    pods: Vec<(String, u64, u64, i64)>,
    url: String,
}

impl From<access_log::RecountedPrompt> for RecountedPrompt {
    fn from(one: access_log::RecountedPrompt) -> Self {
        let open = one.pods.into_iter().filter(|pod| !pod.is_excluded);
        RecountedPrompt {
            hashes: Cow::Owned(one.blocks.hashes.concat()),
            size: one.blocks.size,
            is_cached: one.is_cached,
            pods: open.map(|pod| (pod.url.clone(), pod.load(), pod.matched, pod.waiting)).collect(),
            url: one.url,
        }
    }
}

/// The copy of a kept response that a request got.
#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct RecountedHit {
    digest: Data,
    revision: String,
    chosen: String,
    saved: SavedTuple,
    found_s: f64,
}

impl From<access_log::Hit> for RecountedHit {
    fn from(one: access_log::Hit) -> Self {
        RecountedHit {
            digest: Cow::Owned(one.digest),
            revision: one.revision,
            chosen: one.chosen,
            saved: saved(one.saved),
            found_s: one.found_s,
        }
    }
}

/// What a tenant paid for a request.
#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct Paid {
    tenant: String,
    key: String,
    table: u64,
    prompt_tokens: Option<i64>,
    reserved: (i64, i64),
    usage: (i64, i64, i64),
    is_estimated: bool,
    cost_nano: i64,
}

impl From<access_log::Paid> for Paid {
    fn from(one: access_log::Paid) -> Self {
        Paid {
            tenant: one.tenant,
            key: one.key,
            table: one.table,
            prompt_tokens: one.prompt_tokens,
            reserved: one.reserved,
            usage: counted(one.usage),
            is_estimated: one.is_estimated,
            cost_nano: one.cost_nano,
        }
    }
}

impl From<access_log::Recount> for Recount {
    fn from(one: access_log::Recount) -> Self {
        Recount {
            owner: one.owner,
            request: Cow::Owned(one.request),
            response: Cow::Owned(one.response),
            request_id: one.request_id,
            route: one.route,
            model: one.model,
            salt: one.salt,
            weights: one.weights,
            key: Cow::Owned(one.key),
            client: one.client,
            own: one.own,
            stratum: one.stratum,
            sent: Cow::Owned(one.sent),
            paid: one.paid.map(Paid::from),
            hit: one.hit.map(RecountedHit::from),
            prompt: one.prompt.map(RecountedPrompt::from),
        }
    }
}

/// A request that the lane has sent, and that Python goes on with. Its counts in the lane end with `end`.
#[pyclass(frozen)]
pub struct Begun(Mutex<Option<Box<handover::Begun>>>, String);

impl From<Box<handover::Begun>> for Begun {
    fn from(one: Box<handover::Begun>) -> Self {
        let owner = one.in_flight.as_ref().map(|place| place.owner().to_owned());
        Begun(Mutex::new(Some(one)), owner.unwrap_or_default())
    }
}

impl Begun {
    fn with<T: Default>(&self, look: impl FnOnce(&mut handover::Begun) -> T) -> T {
        locked(&self.0).as_mut().map(|one| look(one)).unwrap_or_default()
    }
}

#[pymethods]
impl Begun {
    #[getter]
    fn id(&self) -> String {
        self.with(|one| one.id.clone())
    }

    /// Route, model, revision and URL.
    #[getter]
    fn endpoint(&self) -> (String, String, String, String) {
        self.with(|one| (one.route.clone(), one.model.clone(), one.revision.clone(), one.url.clone()))
    }

    /// Seconds since the request came, and since it was sent.
    #[getter]
    fn ages_s(&self) -> (f64, f64) {
        self.with(|one| (one.began.elapsed().as_secs_f64(), one.sent.elapsed().as_secs_f64()))
    }

    #[getter]
    fn is_traced(&self) -> bool {
        self.with(|one| one.is_traced)
    }

    #[getter]
    fn was_idle(&self) -> bool {
        self.with(|one| one.was_idle)
    }

    #[getter]
    fn owner(&self) -> &str {
        &self.1
    }

    fn detach(&self) -> Option<i32> {
        let stream = self.with(|one| one.endpoint.take())?;
        stream.into_std().ok().map(IntoRawFd::into_raw_fd)
    }

    fn take_received<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.with(|one| std::mem::take(&mut one.received)))
    }

    fn take_unsent<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.with(|one| std::mem::take(&mut one.unsent)))
    }

    /// Its place among the requests in flight is Python's from here on, where this is true.
    fn take_place(&self) -> bool {
        self.with(|one| one.in_flight.take()).map(handover::Place::keep).is_some()
    }

    /// What it took from the limits of this tenant, with the headers that show them; None: it took nothing of it.
    /// Python settles it, and expects its cost already. Without a reservation of this process the gateways count together.
    fn take_reservation(&self, tenant: &str) -> Option<(Option<Reservation>, LimitHeaders)> {
        let is_its = |one: &Reserved| one.tenant() == tenant;
        let reserved = self.with(|one| one.reserved.take_if(|reserved| is_its(reserved)))?;
        let (reservation, headers) = reserved.hand();
        Some((reservation.map(Reservation), headers))
    }

    /// Whether its endpoint had most of its prompt; None: that had no part in the choice.
    #[getter]
    fn was_cached(&self) -> Option<bool> {
        self.with(|one| one.prefill.as_ref().map(|prefill| prefill.was_cached()))
    }

    fn take_prefill(&self) -> Option<Prefill> {
        self.with(|one| one.prefill.take()).map(Prefill::from)
    }

    /// Python counts it from here on.
    fn counted(&self) {
        drop(self.with(|one| one.flight.take()));
    }

    /// Nothing more is done with it. What it still has is closed and given back.
    fn end(&self) {
        let left = locked(&self.0).take();
        drop(left);
    }
}

#[pyfunction]
pub fn is_good_response(body: &[u8]) -> bool {
    responses::is_good(body)
}

#[pyfunction]
pub fn is_varied_text(text: &[u8]) -> bool {
    responses::is_varied(text)
}

#[pyfunction]
pub fn http_date(unix_s: u64) -> String {
    crate::serving::api::http_date(unix_s)
}
