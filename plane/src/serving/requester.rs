//! What the lane decides about a request before it is sent: its route, its key, and under which names it counts.

use std::sync::Arc;

use super::admission::{unix_s, Metered};
use crate::balancing::prefix_affinity::{LOAD_FORMAT, TEXT};
use crate::balancing::prompt_blocks::PromptBlocks;
use crate::caching::copies::{parts_of, CacheRule};
use crate::caching::request_key::is_by_chance;
use crate::handover::{locked, Returns};
use crate::identity::tenants::Identity;
use crate::keyed_lookup::Parts;
use crate::lane::Lane;
use crate::routing::public_names::{choose_target, PassedRule};
use crate::routing::rules::RoutedRequest;
use crate::routing::table::{Named, Route};
use crate::upstream::tenant_proof::TenantProof;
use crate::wire::headers::{self, line, to_upstream, Headers, RequestHeaders};
use crate::wire::inference::model_in;
use crate::wire::request_fields::{client, sticky_key, tenant, RequestFields};
use crate::wire::responses::writes_text;
use crate::wire::subset::{plain_head, PlainHead, MAX_LINES};

/// Why a request is Python's, and the model that clients name, where it is known.
#[derive(Clone, Debug)]
pub struct Refused {
    pub reason: &'static str,
    pub model: String,
    pub returns: Returns,
}

const TRACEPARENT: &str = "traceparent";
const CACHE_CONTROL: &str = "cache-control";
/// The rules of a public name need what the lane has not, or lead to no route.
const MODEL_ROUTE: &str = "model_route";

impl Refused {
    /// Of the message itself, or of all requests for now.
    pub fn new(reason: &'static str) -> Self {
        let returns = if reason == "table" { Returns::WithTable } else { Returns::Never };
        Refused { reason, model: String::new(), returns }
    }

    /// Of the body, or of the state of the gateway: the next request may be another one.
    pub fn once(reason: &'static str) -> Self {
        Refused { reason, model: String::new(), returns: Returns::AtOnce }
    }

    pub fn of(route: &Route, reason: &'static str) -> Self {
        Refused { reason, model: route.id.clone(), returns: Returns::AtOnce }
    }

    /// Of its credentials. A proxy may send the next request of the connection for another tenant.
    pub fn unidentified(reason: &'static str) -> Self {
        if reason == "credentials" {
            Refused::new(reason)
        } else {
            Refused::once(reason)
        }
    }
}

/// Where the parts of a request are.
#[derive(Clone, Copy, Debug)]
pub struct Framed {
    pub head_bytes: usize,
    pub body_bytes: usize,
    pub keeps_alive: bool,
}

/// A request as it is sent.
#[derive(Debug)]
pub struct Outgoing {
    pub route: Arc<Route>,
    /// Rules of ModelRoutes that led to it, and the number of their table.
    pub passed: Vec<Arc<PassedRule>>,
    pub table: u64,
    pub path: String,
    pub request_id: String,
    pub client_request_id: String,
    pub key: Vec<u8>,
    pub client: Arc<str>,
    /// Header lines, without those of the connection.
    pub headers: Vec<u8>,
    pub body: Arc<Vec<u8>>,
    /// None: no tenant pays for it.
    pub metered: Option<Metered>,
    /// By what a copy of a kept response is looked up; None: its route keeps none, or none for it.
    pub lookup: Option<Parts>,
    /// Its route keeps responses, and none for it.
    pub bypasses_cache: bool,
    /// By which its endpoint is chosen; None where its route does not want that.
    pub prompt: Option<PromptBlocks>,
    /// Its spans are recorded.
    pub is_traced: bool,
}

impl Outgoing {
    /// The name of its tenant; empty without one.
    pub fn tenant(&self) -> &str {
        self.metered.as_ref().map_or("", |one| &one.tenant().name)
    }

    /// Whose places among the requests in flight it takes. `address`: the owner of the client's.
    pub fn owner(&self, address: &str) -> String {
        match &self.metered {
            Some(one) => one.tenant().client.to_string(),
            None => format!("address:{address}"),
        }
    }
}

/// Reads a head. None: it is not whole yet.
///
/// # Errors
/// Why Python gets the request.
pub fn frame(lane: &Lane, received: &[u8]) -> Result<Option<Framed>, &'static str> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_LINES];
    let Some((head_bytes, head)) = parsed(lane, received, &mut lines)? else { return Ok(None) };
    Ok(Some(Framed { head_bytes, body_bytes: head.0.length, keeps_alive: head.0.keeps_alive }))
}

type Parsed<'a, 'h> = (PlainHead<'a>, &'h [httparse::Header<'a>]);

fn parsed<'a, 'h>(
    lane: &Lane,
    received: &'a [u8],
    lines: &'h mut [httparse::Header<'a>],
) -> Result<Option<(usize, Parsed<'a, 'h>)>, &'static str> {
    let begin = received.len().min(5);
    if received.get(..begin) != b"POST ".get(..begin) {
        return Err("method");
    }
    let mut request = httparse::Request::new(lines);
    let head_bytes = match request.parse(received) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) if received.len() < lane.settings.max_head_bytes => return Ok(None),
        Ok(httparse::Status::Partial) => return Err("long_head"),
        Err(_) => return Err("lines"),
    };
    if head_bytes > lane.settings.max_head_bytes {
        return Err("long_head");
    }
    let head = received.get(..head_bytes).unwrap_or_default();
    let is_path = |path: &str| model_in(path).is_some() || lane.settings.paths.iter().any(|known| known == path);
    let plain = plain_head(head, &request, is_path, lane.settings.max_body_bytes);
    Ok(Some((head_bytes, (plain.map_err(|why| why.name())?, request.headers))))
}

/// Prepares a whole request. `id`: made by this gateway. `owner`: of the client's address.
///
/// # Errors
/// Why Python gets the request.
pub fn prepare(lane: &Lane, framed: Framed, request: &[u8], id: &str, owner: &str) -> Result<Outgoing, Refused> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_LINES];
    let parsed = parsed(lane, request, &mut lines).map_err(Refused::new)?;
    let (_, (head, listed)) = parsed.ok_or(Refused::new("lines"))?;
    let identity = identify(lane, listed)?;
    let body = request.get(framed.head_bytes..).unwrap_or_default();
    let in_path = model_in(head.path);
    let fields = match in_path {
        // It may be of any type, and nothing of it is looked at.
        Some(_) => RequestFields::parse(b"{}"),
        None => RequestFields::parse(body),
    };
    let fields = fields.map_err(|why| Refused::once(why.0))?;
    let model = in_path.or(fields.model.as_deref()).filter(|model| !model.is_empty());
    let model = model.ok_or(Refused::once("no_model"))?;
    let request_id = headers::request_id(listed).unwrap_or(id);
    let settings = &lane.settings;
    let names = Names::of(lane, identity.as_ref(), listed, &fields, owner);
    let key = sticky_key(listed, &fields, request_id, settings.sticky, &names.session);
    let tenant = identity.as_ref().map_or("", |one| &one.tenant.name);
    let routed = RoutedRequest::new(listed, tenant, &fields, body.len());
    let Destination { route, passed, table } = destination(lane, model, identity.as_ref(), &routed, &key)?;
    if let Some(identity) = &identity {
        admits(identity, &route)?;
    }
    if in_path.is_some() && model != route.model {
        return Err(Refused::of(&route, "model_path"));
    }
    if fields.streams() {
        return Err(Refused::of(&route, "stream"));
    }
    if fields.wants_json() && writes_text(head.path) {
        return Err(Refused::of(&route, "json_format"));
    }
    let rewritten = if model == route.model { Ok(body.to_vec()) } else { fields.with_model(body, &route.model) };
    let body = Arc::new(rewritten.map_err(|why| Refused::of(&route, why.0))?);
    let client_request_id = headers::first_value(listed, "x-request-id").unwrap_or_default();
    let bypasses_cache = route.cache.is_some() && is_by_chance(head.path, &fields);
    if bypasses_cache && headers::first_value(listed, CACHE_CONTROL).is_some() {
        return Err(Refused::of(&route, "cache"));
    }
    // Of what a cache may have the lane sends nothing.
    let mut prompt = None;
    let (lookup, (headers, is_traced)) = match route.cache.as_ref().filter(|_| !bypasses_cache) {
        Some(rule) => {
            let (traces, sent) = (settings.trace_below.is_some(), [head.path.as_bytes(), &body]);
            (Some(lookup_of(rule, &route, listed, &names, sent, traces)?), Default::default())
        }
        None => {
            if route.prefix_affinity {
                prompt = PromptBlocks::of_request(head.path, &fields, &route.name, &names.tenant);
            }
            let (mut headers, is_traced) = headers_of(lane, listed, &route, &names, [id, request_id])?;
            if prompt.is_some() {
                line(&mut headers, LOAD_FORMAT, TEXT);
            }
            (None, (headers, is_traced))
        }
    };
    let metered = identity.map(|one| Metered::new(one, &route, head.path, &fields, body.clone(), in_path.is_some()));
    Ok(Outgoing {
        path: head.path.to_owned(),
        request_id: request_id.to_owned(),
        client_request_id: String::from_utf8_lossy(client_request_id).into_owned(),
        key,
        client: names.client,
        headers,
        body,
        metered,
        lookup,
        bypasses_cache,
        prompt,
        is_traced,
        route,
        passed,
        table,
    })
}

/// Who sends a request; None: requests have no identity.
fn identify(lane: &Lane, listed: Headers<'_>) -> Result<Option<Identity>, Refused> {
    let Some(tenants) = lane.tenants() else { return Ok(None) };
    tenants.identify(listed, unix_s()).map(Some).map_err(Refused::unidentified)
}

/// Whether a tenant may use a route, and its requests may be served here.
fn admits(identity: &Identity, route: &Route) -> Result<(), Refused> {
    let tenant = &identity.tenant;
    if !tenant.may_use(&[route.name.as_str(), route.id.as_str()]) {
        return Err(Refused::once("unknown_model")); // to this tenant it is
    }
    if route.isolates {
        return Err(Refused { returns: Returns::WithTable, ..Refused::of(route, "isolation") });
    }
    Ok(())
}

/// Under which names a request counts: its tenant where it has one, else what its headers and body name.
struct Names {
    /// The pseudonym that servers get; empty: none is known.
    tenant: String,
    client: Arc<str>,
    /// The sticky key of a request without a session; empty: the request's own key, or it alone.
    session: String,
    weight: i64,
    priority_limit: i64,
    /// Its header `Authorization` identified it here, and goes no further.
    is_identified: bool,
}

impl Names {
    fn of(
        lane: &Lane,
        identity: Option<&Identity>,
        listed: Headers<'_>,
        fields: &RequestFields<'_>,
        owner: &str,
    ) -> Self {
        let settings = &lane.settings;
        match identity {
            Some(identity) => Names {
                tenant: identity.tenant.pseudonym.clone(),
                client: identity.tenant.client.clone(),
                session: identity.session(),
                weight: identity.tenant.weight,
                priority_limit: identity.tenant.priority_limit.unwrap_or(settings.priority_limit),
                is_identified: true,
            },
            None => Names {
                tenant: tenant(listed, fields, settings.tenants, &settings.tenant_salt),
                client: client(listed, owner, settings.shares_by_key).into(),
                session: String::new(),
                weight: 1,
                priority_limit: settings.priority_limit,
                is_identified: false,
            },
        }
    }
}

/// By what a copy of a kept response is looked up for a request.
///
/// # Errors
/// Python decides: the request says what it takes from a cache, or its server knows who the client is.
fn lookup_of(
    rule: &CacheRule,
    route: &Route,
    listed: Headers<'_>,
    names: &Names,
    [path, body]: [&[u8]; 2],
    traces: bool,
) -> Result<Parts, Refused> {
    let has = |name: &str| headers::first_value(listed, name).is_some();
    if traces && has(TRACEPARENT) {
        return Err(Refused::of(route, "trace"));
    }
    if has(CACHE_CONTROL) || names.forwarded(&route.forwarded).into_iter().any(has) {
        return Err(Refused::of(route, "cache"));
    }
    Ok(parts_of(rule, &names.tenant, &route.name, [path, body], listed))
}

/// Header lines for a server, without those of the connection, and whether its spans are recorded. `id`: made by this
/// gateway.
fn headers_of(
    lane: &Lane,
    listed: Headers<'_>,
    route: &Route,
    names: &Names,
    [id, request_id]: [&str; 2],
) -> Result<(Vec<u8>, bool), Refused> {
    let forwarded: Vec<&str> = names.forwarded(&route.forwarded);
    let proof = prove(lane, names, &route.name);
    let weight_signature = proof.as_ref().map_or("", |proof| &proof.weight_signature);
    let about = RequestHeaders {
        request_id,
        tenant: &names.tenant,
        forwarded: &forwarded,
        priority_limit: Some(names.priority_limit),
        weight: names.weight,
        weight_signature,
    };
    let mut sent = Vec::with_capacity(1024);
    to_upstream(&mut sent, listed, &about).map_err(|why| Refused::of(route, why.0))?;
    let mut is_traced = false;
    if let Some(below) = lane.settings.trace_below {
        if headers::first_value(listed, TRACEPARENT).is_some() {
            return Err(Refused::of(route, "trace"));
        }
        is_traced = is_chosen(id, below) && lane.may_trace();
        let (span, flags) = (id.get(..16).unwrap_or_default(), if is_traced { "01" } else { "00" });
        line(&mut sent, TRACEPARENT, format!("00-{id}-{span}-{flags}").as_bytes());
    }
    if let Some(proof) = proof {
        line(&mut sent, "X-Slipway-Tenant-Proof", proof.proof.as_bytes());
    }
    Ok((sent, is_traced))
}

/// Whether spans are recorded of a request that is answered here. `id`: made by this gateway.
pub fn is_traced(lane: &Lane, id: &str) -> bool {
    lane.settings.trace_below.is_some_and(|below| is_chosen(id, below) && lane.may_trace())
}

fn is_chosen(id: &str, below: u64) -> bool {
    id.get(16..24).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0) < below
}

impl Names {
    /// Which credentials the server gets: never the header that identified the tenant here.
    fn forwarded<'r>(&self, listed: &'r [String]) -> Vec<&'r str> {
        let all = listed.iter().map(String::as_str);
        all.filter(|name| !(self.is_identified && *name == "authorization")).collect()
    }
}

/// The proof of a request's tenant; None without a tenant, and while the release has no keys.
fn prove(lane: &Lane, names: &Names, deployment: &str) -> Option<TenantProof> {
    if names.tenant.is_empty() {
        return None;
    }
    let weight = if names.weight == 1 { String::new() } else { names.weight.to_string() };
    locked(&lane.signer).as_mut().map(|signer| signer.sign(&names.tenant, deployment, &weight, unix_s()))
}

/// The route of a request, and how it came there.
struct Destination {
    route: Arc<Route>,
    passed: Vec<Arc<PassedRule>>,
    /// Number of the table.
    table: u64,
}

/// The route of a model or, by the rules of its ModelRoute, of a public name.
fn destination(
    lane: &Lane,
    model: &str,
    identity: Option<&Identity>,
    request: &RoutedRequest<'_>,
    key: &[u8],
) -> Result<Destination, Refused> {
    let (table, mut passed) = (lane.table(), Vec::new());
    let mut named = table.names.get(model);
    if let Some(Named::Public(public)) = named {
        if identity.is_some_and(|one| !one.tenant.may_use(&[model])) {
            return Err(Refused::once("unknown_model")); // to this tenant it is
        }
        let chosen = choose_target(&table.public, public, request, key);
        let by_python = || Refused { reason: MODEL_ROUTE, model: model.to_owned(), returns: Returns::AtOnce };
        let (target, rules) = chosen.ok_or_else(by_python)?;
        (named, passed) = (Some(table.deployments.get(target).ok_or_else(by_python)?), rules);
    }
    let route = match named {
        None | Some(Named::Public(_)) => return Err(Refused::once("unknown_model")),
        Some(Named::Other(id, reason)) => {
            return Err(Refused { reason, model: id.clone(), returns: Returns::WithTable });
        }
        Some(Named::Plain(route)) => route.clone(),
    };
    match route.why_python() {
        Some(reason) => Err(Refused::of(&route, reason)),
        None => Ok(Destination { route, passed, table: table.number }),
    }
}

/// Appends the header with the rules of ModelRoutes that led a request to its route.
pub fn name_rules(out: &mut Vec<u8>, passed: &[Arc<PassedRule>]) {
    if !passed.is_empty() {
        let rules: Vec<&str> = passed.iter().map(|one| one.rule.as_str()).collect();
        line(out, "X-Slipway-Route", rules.join(", ").as_bytes());
    }
}

/// The whole message of a request to an endpoint.
pub fn message(outgoing: &Outgoing, prefix: &str, host: &str) -> Vec<u8> {
    let mut made = Vec::with_capacity(outgoing.headers.len() + outgoing.body.len() + 160);
    for part in ["POST ", prefix, &outgoing.path, " HTTP/1.1\r\n"] {
        made.extend_from_slice(part.as_bytes());
    }
    made.extend_from_slice(&outgoing.headers);
    line(&mut made, "Host", host.as_bytes());
    line(&mut made, "Content-Length", itoa::Buffer::new().format(outgoing.body.len()).as_bytes());
    made.extend_from_slice(b"\r\n");
    made.extend_from_slice(&outgoing.body);
    made
}
