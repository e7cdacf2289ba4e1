//! Requests of routes with a cache: a request gets a copy of a kept response, or it is Python's.

use std::sync::Arc;
use std::time::Instant;

use super::admission::{unix_s, Reserved};
use super::api::{Answer, AnsweredBy, Connection, Next, Running};
use super::requester::{is_traced, Framed, Outgoing, Refused};
use crate::balancing::in_flight::Revision;
use crate::caching::copies::{digest_at, KeptResponse};
use crate::handover::{locked, Place};
use crate::keyed_lookup::{Digest, Parts};
use crate::lane::Lane;
use crate::routing::router::assign_revision;
use crate::routing::table::Route;
use crate::wire::headers::line;
use crate::wire::request_fields::hexadecimal;
use crate::wire::responses::computes;

/// No copy is there, or it is not for this request.
const NONE: &str = "cache";
/// The head of a copy, beside the kept header lines.
const HEAD_BYTES: usize = 1024;

/// A copy for a request. `chosen`: the revision that the request would have gone to. `revision`: of the response.
/// `found_s`: on Python's clock.
pub(crate) struct Found {
    pub kept: Arc<KeptResponse>,
    pub digest: Digest,
    pub chosen: Arc<Revision>,
    pub revision: Arc<Revision>,
    pub found_s: f64,
}

/// What a request holds while it gets its copy.
struct HeldByHit {
    in_flight: Place,
    reserved: Option<Reserved>,
}

impl Connection {
    /// Answers a request of a route with a cache by a kept response; without one it is Python's.
    pub(super) async fn replay(&mut self, framed: Framed, began: Instant, id: &str, mut outgoing: Outgoing) -> Next {
        let (found, mut held) = match self.admit_hit(&mut outgoing, id).await {
            Ok(admitted) => admitted,
            Err(reason) => return Next::Python(Refused::of(&outgoing.route, reason), None),
        };
        outgoing.is_traced = is_traced(&self.lane, id);
        let answer = self.copy(&found, &outgoing, id, held.reserved.as_ref(), framed.keeps_alive);
        let size = framed.head_bytes + framed.body_bytes;
        if !self.held.set(size + answer.message.len() + self.stream.buffered_bytes(answer.message.len())) {
            if let Some(reserved) = held.reserved.take() {
                reserved.release();
            }
            return Next::Python(Refused::of(&outgoing.route, "memory"), None);
        }
        locked(&self.lane.copies).note_use(&found.digest, &found.kept);
        self.assign(&outgoing);
        let request = std::mem::take(&mut self.received);
        let first_byte = began.elapsed().as_secs_f64();
        let bill = answer.bill.as_ref();
        if let (Some(reserved), Some(bill)) = (held.reserved.take(), bill) {
            reserved.charge(&found.revision, bill, false); // it costs the same if the client leaves
        }
        let body = answer.message.get(answer.message.len() - found.kept.body.len()..).unwrap_or_default();
        let (kept, digest, chosen, found_s) = (&found.kept, &found.digest, &found.chosen.revision, found.found_s);
        let answered_by = AnsweredBy::Copy { kept, digest, chosen, found_s };
        let (sent, revision, request_bytes) = (began, &found.revision, framed.body_bytes);
        let running = Running { id, began, sent, outgoing: &outgoing, revision, answered_by, request_bytes };
        let in_flight = held.in_flight;
        let is_sent = self
            .send(&answer.message, |is_sent| {
                drop(in_flight);
                let (sent_bytes, outcome) = if is_sent { (body.len(), "ok") } else { (0, "client_closed") };
                if is_sent {
                    self.recount(&running, &request, body, bill);
                }
                self.ended(&running, Some((first_byte, body, bill)), sent_bytes, outcome);
            })
            .await;
        match (is_sent, answer.stays) {
            (true, true) => Next::Request,
            (true, false) => {
                self.stream.close();
                Next::Closed
            }
            (false, _) => Next::Closed,
        }
    }

    /// The copy for a request, and what it holds meanwhile. An error says why Python decides.
    async fn admit_hit(&self, outgoing: &mut Outgoing, id: &str) -> Result<(Found, HeldByHit), &'static str> {
        let lane = &self.lane;
        let found = find(lane, outgoing)?;
        let in_flight = Place::take(&lane.in_flight, outgoing.owner(self.place.owner())).map_err(|_| "in_flight")?;
        let Some(metered) = &mut outgoing.metered else {
            return Ok((found, HeldByHit { in_flight, reserved: None }));
        };
        metered.hit(found.kept.usage.unwrap_or_default());
        let deadline = Instant::now() + lane.settings.patience;
        let reserved = Reserved::take(lane, metered, id, self.shared.handover(), deadline).await?;
        match still(lane, outgoing, &found, &reserved) {
            Ok(()) => Ok((found, HeldByHit { in_flight, reserved: Some(reserved) })),
            Err(reason) => {
                reserved.release();
                Err(reason)
            }
        }
    }

    /// The message that a client gets.
    fn copy(&self, found: &Found, outgoing: &Outgoing, id: &str, reserved: Option<&Reserved>, stays: bool) -> Answer {
        let kept = &found.kept;
        let mut message = Vec::with_capacity(HEAD_BYTES + kept.head.len() + kept.body.len());
        message.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        message.extend_from_slice(&kept.head);
        let age_s = kept.age_s(unix_s()) as u64;
        line(&mut message, "Age", itoa::Buffer::new().format(age_s).as_bytes());
        line(&mut message, "X-Request-Id", outgoing.request_id.as_bytes());
        line(&mut message, "X-Slipway-Revision", kept.revision.as_bytes());
        line(&mut message, "X-Slipway-Cache", b"hit");
        if let Some(reserved) = reserved {
            reserved.write_headers(&mut message);
        }
        let stays = self.end_head(&mut message, kept.body.len(), [false, kept.has_server], stays);
        kept.write_body(&mut message, new_id(id).as_bytes());
        Answer { message, stays, bill: outgoing.metered.as_ref().and_then(|one| one.hit_bill()) }
    }

    /// The session of a request counts as assigned to the revision that the split chose; its outcome counts for none.
    fn assign(&self, outgoing: &Outgoing) {
        let route = &outgoing.route;
        let own = assign_revision(&route.backends, &route.salt, &outgoing.key);
        if let (Some(generation), Some(own)) = (&route.generation, own.filter(|_| computes(&outgoing.path))) {
            generation.hit(own, &outgoing.key, outgoing.client.as_bytes(), self.lane.now_s());
        }
    }
}

/// 32 hexadecimal digits of a response's id, which no other response has. `id`: of its request, made by this gateway.
fn new_id(id: &str) -> String {
    let mut parts = Parts::default();
    parts.add(b"response");
    parts.add(id.as_bytes());
    hexadecimal(&parts.digest()[..16])
}

/// The kept response of the revision that a request would go to now. An error says why Python decides.
fn find(lane: &Lane, outgoing: &Outgoing) -> Result<Found, &'static str> {
    let lookup = outgoing.lookup.as_ref().ok_or(NONE)?;
    find_at(lane, &outgoing.route, lookup, [&outgoing.key, outgoing.tenant().as_bytes()], [lane.now_s(), unix_s()])
}

/// `find`, of a request with this sticky key and tenant, at a time on Python's clock and in Unix time.
pub(crate) fn find_at(
    lane: &Lane,
    route: &Route,
    lookup: &Parts,
    [key, tenant]: [&[u8]; 2],
    [now_s, unix_s]: [f64; 2],
) -> Result<Found, &'static str> {
    if let Some(reason) = route.why_python() {
        return Err(reason);
    }
    let rule = route.cache.as_ref().ok_or(NONE)?;
    let tenant = std::str::from_utf8(tenant).unwrap_or_default();
    let chosen = route.pick(key, tenant, None).ok_or("no_endpoint")?.revision;
    let digest = digest_at(lookup.clone(), &chosen.revision);
    let kept = locked(&lane.copies).find(&digest).ok_or(NONE)?;
    if kept.age_s(unix_s) >= rule.ttl_s || now_s >= kept.expires_s {
        return Err(NONE);
    }
    // It counts for the revision that computed it: where that has gone, Python counts it.
    let mut of_route = route.served.iter().map(|served| &served.revision);
    let revision = of_route.find(|one| one.revision == kept.revision).ok_or(NONE)?.clone();
    Ok(Found { kept, digest, chosen, revision, found_s: now_s })
}

/// Whether a copy is there still, after limits were awaited. An error says why Python decides.
fn still(lane: &Lane, outgoing: &Outgoing, found: &Found, reserved: &Reserved) -> Result<(), &'static str> {
    if !lane.table().has(&outgoing.route) {
        return Err("expired");
    }
    if let Some(reason) = outgoing.route.why_python() {
        return Err(reason);
    }
    let is_there = locked(&lane.copies).find(&found.digest).is_some_and(|kept| Arc::ptr_eq(&kept, &found.kept));
    if !is_there {
        return Err(NONE);
    }
    reserved.has_room(&found.revision).then_some(()).ok_or("charges")
}
