//! The pure functions as Python calls them: for the suite that drives them beside the gateway's own.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::lane::{public_route, ModelRouteTuple};
use super::prefixes::prompt_blocks;
use super::tenants::{identify, may_use, periods_of, price_of_tuple, PriceTuple, Reservation, TenantQuota};
use crate::balancing::pick_endpoint::{LeastLoaded, PickEndpoint, Pod, PrefixAffinity};
use crate::balancing::prompt_blocks::PromptBlocks;
use crate::identity::api_keys::{self, Credentials, KeyHash, Pepper};
use crate::quotas::bounds::UsageBound;
use crate::quotas::estimate::{self, Estimate};
use crate::quotas::gcra::{self, Hold, Rate};
use crate::quotas::meter::{self, Beginning};
use crate::quotas::prices::{self, Price};
use crate::quotas::tenant;
use crate::quotas::usage::{self, Usage};
use crate::routing::public_names::{self, PassedRule, PublicRoutes};
use crate::routing::router::{self, Backend, HeaderMatch};
use crate::routing::rules::RoutedRequest;
use crate::routing::split;
use crate::upstream::tenant_proof::{SigningKey, TenantSigner};
use crate::wire::headers::{self, RequestHeaders};
use crate::wire::json_values::{self, integer_of, lenient_integer_of};
use crate::wire::request_fields::{self, RequestFields, Sources, FIELD_NAMES};
use crate::wire::resume::StreamProgress;
use crate::wire::sse::{self, EventAligner};
use crate::wire::subset::plain_head;

create_exception!(slipway_plane, NotSure, PyException, "The function leaves an input to Python; it says why.");

type HeaderList = Vec<(String, Vec<u8>)>;
type Counted = (i64, i64, i64);
type Match = (String, Option<String>, Option<String>);
type PodTuple = (String, u64, u64, bool);
type Data = Cow<'static, [u8]>;
/// A deployment, and the ModelRoutes and rules that led to it.
type ChosenTuple = (String, Vec<(String, String)>);

impl From<json_values::NotSure> for PyErr {
    fn from(reason: json_values::NotSure) -> Self {
        NotSure::new_err(reason.0)
    }
}

fn borrowed(listed: &HeaderList) -> Vec<httparse::Header<'_>> {
    listed.iter().map(|(name, value)| httparse::Header { name, value }).collect()
}

fn bytes(data: impl AsRef<[u8]>) -> Data {
    Cow::Owned(data.as_ref().to_vec())
}

fn counted(usage: Option<Usage>) -> Option<Counted> {
    usage.map(|one| (one.input_tokens, one.output_tokens, one.cached_tokens))
}

// -- wire

/// Everything that is read of a body: see `_native.pyi`.
#[pyfunction]
fn request_fields_of<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let fields = RequestFields::parse(body)?;
    let values = PyDict::new(py);
    for (name, value) in FIELD_NAMES.iter().zip(fields.values()) {
        if !value.is_empty() {
            values.set_item(name, PyBytes::new(py, value))?;
        }
    }
    let read = PyDict::new(py);
    read.set_item("model", fields.model.as_deref())?;
    read.set_item("values", values)?;
    read.set_item("streams", fields.streams())?;
    read.set_item("lacks_usage", fields.lacks_usage())?;
    read.set_item("version", fields.version())?;
    read.set_item("wants_json", fields.wants_json())?;
    read.set_item("excused", fields.excused())?;
    read.set_item("responses", estimate::responses(&fields))?;
    read.set_item("repeated_bytes", estimate::repeated_bytes(&fields))?;
    Ok(read)
}

#[pyfunction]
fn with_model(body: &[u8], model: &str) -> PyResult<Data> {
    Ok(bytes(RequestFields::parse(body)?.with_model(body, model)?))
}

#[pyfunction]
fn with_usage(body: &[u8]) -> PyResult<Data> {
    Ok(bytes(RequestFields::parse(body)?.with_usage(body)))
}

/// The sticky key, the tenant's pseudonym and the client of a request.
#[pyfunction]
fn names_of(
    listed: HeaderList,
    body: &[u8],
    request_id: &str,
    sources: (bool, bool, bool),
    own: &str,
    salt: &str,
    owner: &str,
) -> PyResult<(Data, String, String)> {
    let (headers, fields) = (borrowed(&listed), RequestFields::parse(body)?);
    let sources = Sources { session: sources.0, user: sources.1, key: sources.2 };
    let sticky = request_fields::sticky_key(&headers, &fields, request_id, sources, own);
    let tenant = request_fields::tenant(&headers, &fields, sources, salt);
    Ok((bytes(sticky), tenant, request_fields::client(&headers, owner, sources.key)))
}

#[pyfunction]
fn numbers_of(value: &[u8]) -> (Option<i128>, Option<i128>, usize, bool) {
    let counted = json_values::count_items(value);
    (integer_of(value), lenient_integer_of(value), counted, json_values::does_nothing(value))
}

#[pyfunction]
#[pyo3(signature = (listed, request_id, tenant, forwarded, priority_limit, weight))]
fn to_upstream(
    listed: HeaderList,
    request_id: &str,
    tenant: &str,
    forwarded: Vec<String>,
    priority_limit: Option<i64>,
    weight: i64,
) -> PyResult<Data> {
    let forwarded: Vec<&str> = forwarded.iter().map(String::as_str).collect();
    let weight_signature = "";
    let about = RequestHeaders { request_id, tenant, forwarded: &forwarded, priority_limit, weight, weight_signature };
    let mut out = Vec::new();
    headers::to_upstream(&mut out, &borrowed(&listed), &about)?;
    Ok(bytes(out))
}

#[pyfunction]
fn to_client(listed: HeaderList, request_id: &str, revision: &str, forwarded: Vec<String>) -> PyResult<Data> {
    let forwarded: Vec<&str> = forwarded.iter().map(String::as_str).collect();
    let mut out = Vec::new();
    headers::to_client(&mut out, &borrowed(&listed), request_id, revision, &forwarded)?;
    Ok(bytes(out))
}

/// The client's request id and the server's count of prompt tokens.
#[pyfunction]
fn read_headers(listed: HeaderList) -> (Option<String>, Option<i64>) {
    let headers = borrowed(&listed);
    (headers::request_id(&headers).map(str::to_owned), headers::prompt_tokens(&headers))
}

/// Path, length of the body and keep-alive of a head; None where it is not whole. Raises NotSure with the reason.
#[pyfunction]
fn plain_head_of(head: &[u8], paths: Vec<String>, most_bytes: usize) -> PyResult<Option<(String, usize, bool)>> {
    let mut lines = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut lines);
    let size = match request.parse(head) {
        Ok(httparse::Status::Partial) => return Ok(None),
        Ok(httparse::Status::Complete(size)) => size,
        Err(error) => return Err(NotSure::new_err(error.to_string())),
    };
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let plain = plain_head(&head[..size], &request, |path| paths.contains(&path), most_bytes);
    let plain = plain.map_err(|reason| NotSure::new_err(reason.name()))?;
    Ok(Some((plain.path.to_owned(), plain.length, plain.keeps_alive)))
}

#[pyclass(name = "EventAligner")]
#[derive(Default)]
struct AlignerClass(EventAligner);

#[pymethods]
impl AlignerClass {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn feed(&mut self, chunk: &[u8]) -> Data {
        bytes(self.0.feed(chunk))
    }

    fn flush(&mut self) -> Data {
        bytes(self.0.flush())
    }

    #[getter]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }

    fn reports_crash(&self) -> bool {
        self.0.reports_crash()
    }
}

#[pyfunction]
fn split_crash_comment(events: &[u8]) -> (Data, bool) {
    let (rest, crashed) = sse::split_crash_comment(events);
    (bytes(rest), crashed)
}

#[pyclass(name = "StreamProgress")]
struct ProgressClass(StreamProgress);

#[pymethods]
impl ProgressClass {
    /// None where the server does not mark its events.
    #[staticmethod]
    fn begin(listed: HeaderList, revision: &str, holder: &str, tokens: &[u8]) -> Option<Self> {
        StreamProgress::start(&borrowed(&listed), revision, holder, tokens.to_vec()).map(ProgressClass)
    }

    fn add_ids(&mut self, events: &[u8]) -> Data {
        let mut out = Vec::new();
        self.0.add_ids(events, &mut out);
        bytes(out)
    }

    fn forget(&mut self) {
        self.0.forget();
    }

    fn moves_to(&mut self, holder: &str) {
        self.0.move_to(holder);
    }

    fn continues(&mut self, listed: HeaderList) -> bool {
        self.0.continues(&borrowed(&listed))
    }

    /// The stream, the value of `X-Slipway-Resume`, the tokens, and the position.
    #[getter]
    fn state(&self) -> (String, Option<Data>, Data, u64) {
        (self.0.stream().to_owned(), self.0.resume().map(bytes), bytes(self.0.tokens()), self.0.position())
    }
}

// -- identity

/// The key of a request; None without credentials.
#[pyfunction]
fn credentials(listed: HeaderList) -> PyResult<Option<String>> {
    Ok(match api_keys::credentials(&borrowed(&listed))? {
        Credentials::Missing => None,
        Credentials::Key(key) => Some(key.to_owned()),
    })
}

#[pyfunction]
fn key_id(key: &str) -> Option<&str> {
    api_keys::key_id(key)
}

#[pyfunction]
fn checksum(text: &str) -> String {
    String::from_utf8_lossy(&api_keys::checksum(text)).into_owned()
}

/// Which of the hashes a key has. Those that are written in another way fit no key.
#[pyfunction]
fn find_key(key: &str, pepper: &[u8], hashes: Vec<String>) -> Option<usize> {
    let read: Vec<(usize, KeyHash)> =
        hashes.iter().enumerate().filter_map(|(at, hash)| Some((at, KeyHash::read(hash)?))).collect();
    let (places, entries): (Vec<usize>, Vec<KeyHash>) = read.into_iter().unzip();
    Pepper::new(pepper)?.find(key, &entries).and_then(|at| places.get(at).copied())
}

// -- routing

#[pyfunction]
fn choose(weights: Vec<i64>, salt: &[u8], key: &[u8]) -> Option<usize> {
    split::choose(weights, salt, key)
}

#[pyfunction]
fn tag(url: &str) -> String {
    split::tag(url)
}

#[pyfunction]
fn affinity(node: &str, key: &[u8]) -> u64 {
    split::affinity(node, key)
}

/// `rules`: of each the revision and its matches (name, exact, prefix).
#[pyfunction]
fn header_route(rules: Vec<(String, Vec<Match>)>, listed: HeaderList) -> Option<String> {
    let headers = borrowed(&listed);
    let fits =
        |(name, exact, prefix): &Match| HeaderMatch::new(name, exact.as_deref(), prefix.as_deref()).fits(&headers);
    let rule = rules.into_iter().find(|(_, matches)| !matches.is_empty() && matches.iter().all(fits));
    rule.map(|(revision, _)| revision)
}

/// The deployment to which the rules of the first ModelRoute lead a request, with the ModelRoutes and rules that it passed;
/// None: Python decides. `tenant`: empty without one.
#[pyfunction]
fn choose_target(
    model_routes: Vec<ModelRouteTuple>,
    listed: HeaderList,
    tenant: &str,
    body: &[u8],
    key: &[u8],
) -> PyResult<Option<ChosenTuple>> {
    let Some((first, ..)) = model_routes.first() else { return Ok(None) };
    let first = first.clone();
    let compiled = model_routes.into_iter().map(|(name, _, rules)| (name.clone(), Arc::new(public_route(name, rules))));
    let (routes, fields): (PublicRoutes, _) = (compiled.collect(), RequestFields::parse(body)?);
    let headers = borrowed(&listed);
    let request = RoutedRequest::new(&headers, tenant, &fields, body.len());
    let Some(first) = routes.get(&first) else { return Ok(None) };
    let chosen = public_names::choose_target(&routes, first, &request, key);
    let named = |one: &Arc<PassedRule>| (one.model_route.clone(), one.rule.clone());
    Ok(chosen.map(|(target, passed)| (target.to_owned(), passed.iter().map(named).collect())))
}

fn backends_of(listed: Vec<(String, i64)>) -> Vec<Backend> {
    listed.into_iter().map(|(revision, weight)| Backend { revision, weight }).collect()
}

/// The assigned revision, and the order in which a key tries the others.
#[pyfunction]
fn order_backends(listed: Vec<(String, i64)>, salt: &str, key: &[u8]) -> (Option<String>, Vec<usize>) {
    let backends = backends_of(listed);
    let assigned = router::assign_revision(&backends, salt, key).map(str::to_owned);
    (assigned, router::order_backends(&backends, salt, key))
}

fn pods_of(listed: Vec<PodTuple>) -> Vec<Pod> {
    let pod =
        |(url, in_flight, of_tenant, is_excluded)| Pod { url, in_flight, of_tenant, is_excluded, ..Pod::default() };
    listed.into_iter().map(pod).collect()
}

/// The revision and the URL that a request goes to. `pods`: by backend URL, load, the tenant's part, and whether the
/// pod is excluded.
#[pyfunction]
fn pick(
    listed: Vec<(String, i64)>,
    salt: &str,
    key: &[u8],
    avoided: &str,
    pods: Vec<Vec<PodTuple>>,
) -> Option<(String, String)> {
    let backends = backends_of(listed);
    let pods: Vec<Vec<Pod>> = pods.into_iter().map(pods_of).collect();
    let of = |at: usize| pods.get(at).map(Vec::as_slice).unwrap_or_default();
    let (at, pod) = router::pick(&backends, salt, key, avoided, &LeastLoaded, of)?;
    Some((backends[at].revision.clone(), pods[at][pod].url.clone()))
}

/// The URL in one revision; `holder`: the tag of the endpoint that comes first.
#[pyfunction]
fn pick_holder(pods: Vec<PodTuple>, key: &[u8], holder: &str) -> Option<String> {
    let pods = pods_of(pods);
    let at = if holder.is_empty() {
        LeastLoaded.pick(&pods, key)
    } else {
        router::pick_holder(&pods, key, holder, &LeastLoaded)
    };
    at.map(|at| pods[at].url.clone())
}

/// The URL that a prompt goes to. `pods`: URL, load, the tenant's part, whether it is excluded, and bytes that it has seen
/// and that wait there.
#[pyfunction]
fn pick_for_prompt(pods: Vec<(String, u64, u64, bool, u64, i64)>, name: &str, key: &[u8]) -> Option<String> {
    let pod = |(url, in_flight, of_tenant, is_excluded, matched, waiting)| Pod {
        url,
        in_flight,
        of_tenant,
        is_excluded,
        matched,
        waiting,
    };
    let pods: Vec<Pod> = pods.into_iter().map(pod).collect();
    PrefixAffinity { name }.pick(&pods, key).map(|at| pods[at].url.clone())
}

/// As `PromptBlocks.of_request`: hashes, size and name of a prompt.
#[pyfunction]
fn prompt_of(path: &str, body: &[u8], route: &str, tenant: &str) -> PyResult<Option<(Data, usize, String)>> {
    let fields = RequestFields::parse(body)?;
    let prompt = PromptBlocks::of_request(path, &fields, route, tenant);
    Ok(prompt.map(|one| (bytes(one.hashes.concat()), one.size, one.name())))
}

// -- quotas

fn rate_of(rate: (i64, i64, i64)) -> PyResult<Rate> {
    Rate::new(rate.0, rate.1, rate.2).ok_or_else(|| PyValueError::new_err("no rate"))
}

#[pyclass(name = "Hold")]
struct HoldClass(Hold);

#[pyclass(name = "Bucket")]
struct BucketClass(gcra::Bucket);

#[pymethods]
impl BucketClass {
    /// `rate`: per minute, burst, parts.
    #[new]
    fn new(rate: (i64, i64, i64)) -> PyResult<Self> {
        Ok(BucketClass(gcra::Bucket::new(rate_of(rate)?)))
    }

    fn wait_s(&self, amount: i64, now_s: f64) -> f64 {
        self.0.wait_s(amount, now_s)
    }

    fn take(&mut self, amount: i64, now_s: f64) -> HoldClass {
        HoldClass(self.0.take(amount, now_s))
    }

    fn settle(&mut self, hold: &mut HoldClass, used: i64, now_s: f64) {
        self.0.settle(&mut hold.0, used, now_s);
    }

    fn change(&mut self, rate: (i64, i64, i64), now_s: f64) -> PyResult<()> {
        self.0.change(rate_of(rate)?, now_s);
        Ok(())
    }

    fn full_in_s(&self, now_s: f64) -> f64 {
        self.0.full_in_s(now_s)
    }

    #[getter]
    fn tat_s(&self) -> f64 {
        self.0.tat_s
    }
}

#[pyfunction]
fn duration(seconds: f64) -> String {
    tenant::duration(seconds)
}

/// Input and output tokens of the estimate, and the request's own limit of output tokens.
#[pyfunction]
fn estimate_of(
    body: &[u8],
    path: &str,
    default_output: i64,
    computes: bool,
    writes_text: bool,
) -> PyResult<(i64, i64, Option<i128>)> {
    let fields = RequestFields::parse(body)?;
    let found = estimate::estimate(&fields, path, body.len(), default_output, computes, writes_text);
    Ok((found.input_tokens, found.output_tokens, estimate::output_limit(&fields, path)))
}

/// Which price fits one of the names best, and what a usage costs by it: computed, and from a cache.
#[pyfunction]
fn price_of(listed: Vec<PriceTuple>, names: Vec<String>, usage: Counted) -> (Option<usize>, i64, i64) {
    let listed: Vec<Price> = listed.into_iter().map(price_of_tuple).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let best = prices::price_of(&listed, &names);
    let (input_tokens, output_tokens, cached_tokens) = usage;
    let usage = Usage { input_tokens, output_tokens, cached_tokens };
    let at = best.and_then(|best| listed.iter().position(|price| std::ptr::eq(price, best)));
    (at, best.map_or(0, |price| price.cost_nano(&usage)), best.map_or(0, |price| price.hit_cost_nano(&usage)))
}

#[pyfunction]
fn last_usage(data: &[u8]) -> PyResult<Option<Counted>> {
    Ok(counted(usage::last_usage(data)?))
}

#[pyfunction]
fn usage_of_response(body: &[u8]) -> PyResult<Option<Counted>> {
    Ok(counted(usage::usage_of_response(body)?))
}

#[pyfunction]
fn usage_of_final_event(events: &[u8]) -> PyResult<Option<Counted>> {
    Ok(counted(usage::usage_of_final_event(events)?))
}

/// The position of the last mark, events with data, and the events without that of the usage.
#[pyfunction]
fn read_events(events: &[u8]) -> (Option<i64>, i64, Data) {
    let kept = usage::without_usage_event(events).unwrap_or_else(|| events.to_vec());
    (usage::marked_position(events), usage::count_events(events), bytes(kept))
}

#[pyclass(name = "Meter")]
struct MeterClass(meter::Meter);

#[pymethods]
impl MeterClass {
    /// `body`: None: of a request without one. `path`: for its limit of output tokens.
    #[new]
    #[pyo3(signature = (tokens, body, path, resumed_at, strips_usage, echoes))]
    fn new(
        tokens: (i64, i64),
        body: Option<&[u8]>,
        path: &str,
        resumed_at: i64,
        strips_usage: bool,
        echoes: bool,
    ) -> PyResult<Self> {
        let estimate = Estimate { input_tokens: tokens.0, output_tokens: tokens.1 };
        let bound = match body {
            None => UsageBound::without_body(),
            Some(body) => {
                let fields = RequestFields::parse(body)?;
                let limit = estimate::output_limit(&fields, path);
                let is_of_texts = estimate::TEXT_PATHS.contains(&path);
                let repeated = if is_of_texts { estimate::repeated_bytes(&fields) } else { 0 };
                UsageBound::new(Arc::new(body.to_vec()), &fields, limit, repeated, echoes)
            }
        };
        Ok(MeterClass(meter::Meter::new(estimate, bound, resumed_at, strips_usage, echoes)))
    }

    fn was_sent(&mut self, answered: bool) {
        (self.0.sent, self.0.answered) = (true, answered);
    }

    #[pyo3(signature = (prompt_tokens, continues, recomputes, goes_on))]
    fn begin(&mut self, prompt_tokens: Option<i64>, continues: bool, recomputes: bool, goes_on: bool) {
        self.0.begin(&Beginning { prompt_tokens, continues, recomputes, goes_on });
    }

    fn add_events(&mut self, events: &[u8]) -> Data {
        bytes(self.0.add_events(events))
    }

    fn add_body(&mut self, chunk: &[u8]) {
        self.0.add_body(chunk);
    }

    /// The usage, whether it is an estimate, and what was implausible.
    fn usage(&mut self) -> PyResult<(Option<Counted>, bool, Option<Counted>)> {
        let (usage, estimated) = self.0.usage()?;
        Ok((counted(Some(usage)), estimated, counted(self.0.implausible()?)))
    }

    fn used(&mut self, left: bool) -> PyResult<[Option<i64>; 3]> {
        Ok(self.0.used(left)?)
    }
}

// -- upstream

#[pyclass(name = "TenantSigner")]
struct SignerClass(SigningKey, TenantSigner);

#[pymethods]
impl SignerClass {
    #[new]
    fn new(id: String, master: Vec<u8>) -> Self {
        let key = SigningKey { id, master };
        SignerClass(key.clone(), TenantSigner::new(key))
    }

    /// The proof, and the signature of the weight.
    fn sign(&mut self, tenant: &str, deployment: &str, weight: &str, now_s: f64) -> (String, String) {
        let signed = self.1.sign(tenant, deployment, weight, now_s);
        (signed.proof, signed.weight_signature)
    }

    fn cache_salt(&self, tenant: &str, deployment: &str, client_salt: &[u8]) -> String {
        self.0.cache_salt(tenant, deployment, client_salt)
    }
}

/// The module `twins`.
pub fn module<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyModule>> {
    let twins = PyModule::new(py, "twins")?;
    twins.add("NotSure", py.get_type::<NotSure>())?;
    twins.add_class::<AlignerClass>()?;
    twins.add_class::<ProgressClass>()?;
    twins.add_class::<BucketClass>()?;
    twins.add_class::<HoldClass>()?;
    twins.add_class::<TenantQuota>()?;
    twins.add_class::<Reservation>()?;
    twins.add_class::<MeterClass>()?;
    twins.add_class::<SignerClass>()?;
    add_wire(&twins)?;
    add_others(&twins)?;
    Ok(twins)
}

fn add_wire(twins: &Bound<'_, PyModule>) -> PyResult<()> {
    twins.add_function(wrap_pyfunction!(request_fields_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(with_model, twins)?)?;
    twins.add_function(wrap_pyfunction!(with_usage, twins)?)?;
    twins.add_function(wrap_pyfunction!(names_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(numbers_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(to_upstream, twins)?)?;
    twins.add_function(wrap_pyfunction!(to_client, twins)?)?;
    twins.add_function(wrap_pyfunction!(read_headers, twins)?)?;
    twins.add_function(wrap_pyfunction!(plain_head_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(split_crash_comment, twins)?)
}

fn add_others(twins: &Bound<'_, PyModule>) -> PyResult<()> {
    twins.add_function(wrap_pyfunction!(credentials, twins)?)?;
    twins.add_function(wrap_pyfunction!(key_id, twins)?)?;
    twins.add_function(wrap_pyfunction!(checksum, twins)?)?;
    twins.add_function(wrap_pyfunction!(identify, twins)?)?;
    twins.add_function(wrap_pyfunction!(may_use, twins)?)?;
    twins.add_function(wrap_pyfunction!(periods_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(find_key, twins)?)?;
    twins.add_function(wrap_pyfunction!(choose, twins)?)?;
    twins.add_function(wrap_pyfunction!(tag, twins)?)?;
    twins.add_function(wrap_pyfunction!(affinity, twins)?)?;
    twins.add_function(wrap_pyfunction!(header_route, twins)?)?;
    twins.add_function(wrap_pyfunction!(choose_target, twins)?)?;
    twins.add_function(wrap_pyfunction!(order_backends, twins)?)?;
    twins.add_function(wrap_pyfunction!(pick, twins)?)?;
    twins.add_function(wrap_pyfunction!(pick_holder, twins)?)?;
    twins.add_function(wrap_pyfunction!(pick_for_prompt, twins)?)?;
    twins.add_function(wrap_pyfunction!(prompt_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(prompt_blocks, twins)?)?;
    twins.add_function(wrap_pyfunction!(duration, twins)?)?;
    twins.add_function(wrap_pyfunction!(estimate_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(price_of, twins)?)?;
    twins.add_function(wrap_pyfunction!(last_usage, twins)?)?;
    twins.add_function(wrap_pyfunction!(usage_of_response, twins)?)?;
    twins.add_function(wrap_pyfunction!(usage_of_final_event, twins)?)?;
    twins.add_function(wrap_pyfunction!(read_events, twins)?)
}
