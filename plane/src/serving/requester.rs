//! What the lane decides about a request before it is sent: its route, its key, and under which names it counts.

use std::sync::Arc;

use crate::handover::Returns;
use crate::lane::Lane;
use crate::routing::table::{Named, Route};
use crate::wire::headers::{self, line, to_upstream, RequestHeaders};
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
    pub path: String,
    pub request_id: String,
    pub client_request_id: String,
    pub key: Vec<u8>,
    pub client: Arc<str>,
    /// Header lines, without those of the connection.
    pub headers: Vec<u8>,
    pub body: Vec<u8>,
    /// Its spans are recorded.
    pub is_traced: bool,
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
    let route = route_of(lane, model)?;
    if in_path.is_some() && model != route.model {
        return Err(Refused::of(&route, "model_path"));
    }
    if fields.streams() {
        return Err(Refused::of(&route, "stream"));
    }
    if fields.wants_json() && writes_text(head.path) {
        return Err(Refused::of(&route, "json_format"));
    }
    let given = headers::request_id(listed);
    let request_id = given.unwrap_or(id);
    let settings = &lane.settings;
    let tenant = tenant(listed, &fields, settings.tenants, &settings.tenant_salt);
    let forwarded: Vec<&str> = route.forwarded.iter().map(String::as_str).collect();
    let priority_limit = Some(settings.priority_limit);
    let about = RequestHeaders { request_id, tenant: &tenant, forwarded: &forwarded, priority_limit, weight: 1 };
    let mut sent = Vec::with_capacity(framed.head_bytes + 256);
    to_upstream(&mut sent, listed, &about).map_err(|why| Refused::of(&route, why.0))?;
    let mut is_traced = false;
    if let Some(below) = settings.trace_below {
        if headers::first_value(listed, TRACEPARENT).is_some() {
            return Err(Refused::of(&route, "trace"));
        }
        let chance = id.get(16..24).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
        is_traced = chance < below && lane.may_trace();
        let (span, flags) = (id.get(..16).unwrap_or_default(), if is_traced { "01" } else { "00" });
        line(&mut sent, TRACEPARENT, format!("00-{id}-{span}-{flags}").as_bytes());
    }
    if !tenant.is_empty() {
        prove(lane, &mut sent, &tenant, &route.name);
    }
    let rewritten = if model == route.model { Ok(body.to_vec()) } else { fields.with_model(body, &route.model) };
    let client_request_id = headers::first_value(listed, "x-request-id").unwrap_or_default();
    Ok(Outgoing {
        path: head.path.to_owned(),
        request_id: request_id.to_owned(),
        client_request_id: String::from_utf8_lossy(client_request_id).into_owned(),
        key: sticky_key(listed, &fields, request_id, settings.sticky, ""),
        client: client(listed, owner, settings.shares_by_key).into(),
        headers: sent,
        body: rewritten.map_err(|why| Refused::of(&route, why.0))?,
        is_traced,
        route,
    })
}

fn route_of(lane: &Lane, model: &str) -> Result<Arc<Route>, Refused> {
    match lane.table().names.get(model) {
        None => Err(Refused::once("unknown_model")),
        Some(Named::Other(id, reason)) => Err(Refused { reason, model: id.clone(), returns: Returns::WithTable }),
        Some(Named::Plain(route)) => match route.why_python() {
            Some(reason) => Err(Refused::of(route, reason)),
            None => Ok(route.clone()),
        },
    }
}

fn prove(lane: &Lane, sent: &mut Vec<u8>, tenant: &str, deployment: &str) {
    let unix_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    if let Some(signer) = crate::handover::locked(&lane.signer).as_mut() {
        line(
            sent,
            "X-Slipway-Tenant-Proof",
            signer.sign(tenant, deployment, "", unix_s.as_secs_f64()).proof.as_bytes(),
        );
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
