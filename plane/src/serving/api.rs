//! One connection of a client: plain requests are served here, one after the other; with the first other one the
//! connection goes to Python and stays there.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tokio::time::{sleep_until, timeout};

use super::admission::{unix_s, Bill, Reserved, LIMIT_PREFIX};
use super::bridge::Bridge;
use super::requester::{frame, message, prepare, Framed, Outgoing, Refused};
use super::streams::ClientStream;
use crate::balancing::in_flight::{Flight, Revision};
use crate::balancing::prefix_affinity::{Prefill, LOAD};
use crate::balancing::prompt_blocks::PromptBlocks;
use crate::caching::copies::KeptResponse;
use crate::forwarding::sender::{attempt, Attempted, Waiting, Whole};
use crate::handover::{locked, Begun, Encryption, Handed, Place, FIRST_BYTES};
use crate::judging::samples::{stratum, EndedAttempt};
use crate::keyed_lookup::Digest;
use crate::lane::{Lane, DRAINING};
use crate::ledger::charges::Saved;
use crate::listener::{Panics, Shared, Silent};
use crate::quotas::usage::last_usage;
use crate::routing::router::assign_revision;
use crate::routing::table::{Choice, Prompted};
use crate::telemetry::access_log::{Hit, LogEntry, Paid, Recount, RecountedPrompt};
use crate::wire::headers::{first_value, line, prompt_tokens, to_client};
use crate::wire::inference::model_in;
use crate::wire::request_fields::hexadecimal;
use crate::wire::responses::{computes, is_good, writes_text};

const READ_BYTES: usize = 8 << 10;
const MAX_LINES: usize = 64;
const ID_BYTES: usize = 16;

/// What follows a request.
pub(super) enum Next {
    Request,
    Closed,
    Python(Refused, Option<Box<Begun>>),
}

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) lane: Arc<Lane>,
    pub(super) stream: ClientStream,
    pub(super) place: Place,
    /// Received and not served.
    pub(super) received: Vec<u8>,
    pub(super) held: HeldBytes,
    /// When it began to wait for a request.
    idle_since: Instant,
}

/// Bytes that a connection holds, counted for the owner of its address.
pub(super) struct HeldBytes {
    lane: Arc<Lane>,
    owner: String,
    size: u64,
}

impl HeldBytes {
    /// Counts so many bytes. False: there is no room.
    pub(super) fn set(&mut self, size: usize) -> bool {
        let size = size as u64;
        let mut places = locked(&self.lane.bytes);
        if size > self.size {
            if places.take_many(&self.owner, size - self.size).is_err() {
                return false;
            }
        } else {
            places.leave_many(&self.owner, self.size - size);
        }
        self.size = size;
        true
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        locked(&self.lane.bytes).leave_many(&self.owner, self.size);
    }
}

/// A request that is served.
pub(super) struct Running<'a> {
    pub(super) id: &'a str,
    pub(super) began: Instant,
    /// To an endpoint.
    pub(super) sent: Instant,
    pub(super) outgoing: &'a Outgoing,
    /// The revision that answers.
    pub(super) revision: &'a Arc<Revision>,
    pub(super) answered_by: AnsweredBy<'a>,
    pub(super) request_bytes: usize,
}

/// Where a response comes from.
#[derive(Clone, Copy)]
pub(super) enum AnsweredBy<'a> {
    /// `prompt`: None where it had no part in the choice of the endpoint.
    Endpoint { choice: &'a Choice, prompt: Option<SentPrompt> },
    /// A kept response, by its digest. `chosen`: the revision that the request would have gone to. `found_s`: on Python's
    /// clock.
    Copy { kept: &'a KeptResponse, digest: &'a Digest, chosen: &'a str, found_s: f64 },
}

impl AnsweredBy<'_> {
    fn url(self) -> String {
        match self {
            AnsweredBy::Endpoint { choice, .. } => choice.endpoint.url.clone(),
            AnsweredBy::Copy { .. } => String::new(),
        }
    }

    fn prompt(self) -> Option<SentPrompt> {
        match self {
            AnsweredBy::Endpoint { prompt, .. } => prompt,
            AnsweredBy::Copy { .. } => None,
        }
    }

    fn recounted_prompt(self, outgoing: &Outgoing) -> Option<RecountedPrompt> {
        let AnsweredBy::Endpoint { choice, prompt } = self else { return None };
        let (blocks, is_cached) = (outgoing.prompt.clone()?, prompt?.is_cached);
        Some(RecountedPrompt { blocks, is_cached, pods: choice.pods.clone(), url: choice.endpoint.url.clone() })
    }
}

/// A prompt that an endpoint got: bytes of it that the endpoint had seen, and those that it had not.
#[derive(Clone, Copy)]
pub(super) struct SentPrompt {
    bytes: [usize; 2],
    is_cached: bool,
}

impl From<&Prefill> for SentPrompt {
    fn from(one: &Prefill) -> Self {
        SentPrompt { bytes: [one.prompt_bytes - one.size, one.size], is_cached: one.was_cached() }
    }
}

/// A whole response as the client gets it.
pub(super) struct Answer {
    pub(super) message: Vec<u8>,
    /// Whether the client's connection stays.
    pub(super) stays: bool,
    /// None: no tenant pays for it.
    pub(super) bill: Option<Bill>,
}

/// What a request holds while it is at an endpoint.
struct Held {
    flight: Flight,
    in_flight: Place,
    reserved: Option<Reserved>,
    prefill: Option<Prefill>,
}

impl Held {
    /// Charges a response before the client has it, where that is certain: its next request finds its place free.
    fn charge_ahead(&mut self, bill: Option<&Bill>) {
        if let Some(bill) = bill.filter(|bill| bill.is_certain()) {
            if let Some(reserved) = self.reserved.take() {
                reserved.charge(&self.flight.revision, bill, false);
            }
        }
    }

    /// The client has its response, or left: what is counted as ended is in flight no more.
    fn end(self, bill: Option<&Bill>, has_left: bool) {
        let revision = self.flight.revision.clone();
        drop((self.flight, self.in_flight));
        match (self.reserved, bill) {
            (Some(reserved), Some(bill)) => reserved.charge(&revision, bill, has_left),
            (Some(reserved), None) => reserved.leave(&revision),
            (None, _) => {}
        }
    }
}

/// Serves a connection until it ends or is Python's.
pub(crate) async fn serve(silent: Silent, lane: Arc<Lane>, stream: ClientStream, place: Place) {
    let shared = silent.shared().clone();
    let _panics = Panics(shared.clone());
    let held = HeldBytes { lane: lane.clone(), owner: place.owner().to_owned(), size: 0 };
    let (received, idle_since) = (Vec::new(), Instant::now());
    let mut connection = Connection { shared, lane, stream, place, received, held, idle_since };
    let mut silent = Some(silent);
    loop {
        if connection.received.is_empty() {
            if !connection.wait().await {
                return connection.stream.close();
            }
            silent = None;
        }
        match connection.request().await {
            Next::Request => connection.idle_since = Instant::now(),
            Next::Closed => return,
            Next::Python(refused, begun) => {
                drop(silent.take());
                let Some(returned) = connection.hand_over(&refused, begun).await else { return };
                connection = returned;
            }
        }
    }
}

impl Connection {
    /// Waits for bytes. False: none came in time, or the client left.
    async fn wait(&mut self) -> bool {
        self.received = Vec::new();
        self.held.set(0);
        let mut orders = self.shared.orders();
        loop {
            let (longest_silence, closed_before) = {
                let now = orders.borrow_and_update();
                (now.longest_silence, now.closed_before)
            };
            if closed_before.is_some_and(|before| self.idle_since <= before.into_std()) {
                self.shared.handover().count(|news| news.closed_idle += 1);
                return false;
            }
            tokio::select! {
                biased;
                ready = self.stream.readable() => if ready.is_err() { return false },
                () = sleep_until((self.idle_since + longest_silence).into()) => return false,
                changed = orders.changed() => if changed.is_err() { return false } else { continue },
            }
            match self.read() {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
    }

    fn read(&mut self) -> io::Result<usize> {
        self.received.reserve(FIRST_BYTES);
        let size = self.stream.try_read_buf(&mut self.received);
        self.received.shrink_to_fit();
        size
    }

    /// Reads more of a request. False: it did not come in time, or its client left.
    async fn read_more(&mut self, deadline: Instant) -> bool {
        loop {
            tokio::select! {
                biased;
                ready = self.stream.readable() => if ready.is_err() { return false },
                () = sleep_until(deadline.into()) => return false,
            }
            match self.read() {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
    }

    /// Serves the request whose first bytes have come.
    async fn request(&mut self) -> Next {
        if let Err(reason) = self.lane.is_open() {
            return Next::Python(Refused::new(reason), None);
        }
        // A part of a head is Python's, and so are bytes behind a request: it counts them for their client.
        let framed = match frame(&self.lane, &self.received) {
            Err(reason) => return Next::Python(Refused::new(reason), None),
            Ok(None) => return Next::Python(Refused::new("part_head"), None),
            Ok(Some(framed)) => framed,
        };
        let began = Instant::now();
        let deadline = began + self.lane.settings.patience;
        let size = framed.head_bytes + framed.body_bytes;
        if self.received.len() > size {
            return Next::Python(Refused::new("pipelined"), None);
        }
        // The request, its copy for the endpoint, and room for a response.
        if !self.held.set(2 * size + self.lane.settings.max_response_bytes.min(READ_BYTES)) {
            return Next::Python(Refused::once("memory"), None);
        }
        while self.received.len() < size {
            if !self.read_more(deadline).await {
                return Next::Python(Refused::once("slow_body"), None);
            }
        }
        if self.received.len() > size {
            return Next::Python(Refused::new("pipelined"), None);
        }
        let id = hexadecimal(&random_id());
        let owner = self.place.owner();
        let request = self.received.get(..size).unwrap_or_default();
        match prepare(&self.lane, framed, request, &id, owner) {
            Ok(outgoing) => self.forward(framed, began, &id, outgoing).await,
            Err(refused) => Next::Python(refused, None),
        }
    }

    /// Sends a request to an endpoint, and its response to the client.
    async fn forward(&mut self, framed: Framed, began: Instant, id: &str, outgoing: Outgoing) -> Next {
        if outgoing.lookup.is_some() {
            return self.replay(framed, began, id, outgoing).await;
        }
        let (choice, mut held) = match self.admit(&outgoing, id).await {
            Ok(admitted) => admitted,
            Err(reason) => return Next::Python(Refused::of(&outgoing.route, reason), None),
        };
        let sent = Instant::now();
        let prompt = held.prefill.as_ref().map(SentPrompt::from);
        let size = framed.head_bytes + framed.body_bytes;
        let mut next = Vec::new();
        let whole_message = message(&outgoing, &choice.endpoint.prefix, &choice.endpoint.host);
        let client = Waiting { stream: &self.stream, next: &mut next };
        let deadline = sent + self.lane.settings.patience;
        let is_json = model_in(&outgoing.path).is_none();
        let attempted = attempt(&self.lane, &choice.endpoint, whole_message, deadline, client, is_json).await;
        let (revision, answered_by) = (&choice.revision, AnsweredBy::Endpoint { choice: &choice, prompt });
        let request_bytes = framed.body_bytes;
        let running = Running { id, began, sent, outgoing: &outgoing, revision, answered_by, request_bytes };
        let (reason, connection, received, unsent) = match attempted {
            Attempted::ClientLeft => {
                held.end(None, true);
                self.ended(&running, None, 0, "client_closed");
                self.judge(&running, &choice, false);
                return Next::Closed;
            }
            Attempted::Python { reason, connection, received, unsent } => (reason, connection, received, unsent),
            Attempted::Whole { received, whole, connection } => {
                held.prefill.iter_mut().for_each(Prefill::end);
                let has_room =
                    self.held.set(2 * size + 2 * received.len() + self.stream.buffered_bytes(received.len()));
                let answer = self.answer(&running, &held, &received, whole, framed.keeps_alive);
                match answer.and_then(|answer| has_room.then_some(answer).ok_or("memory")) {
                    Ok(answer) => {
                        if whole.stays {
                            self.lane.pool.keep(choice.endpoint.address, connection);
                        }
                        self.judge(&running, &choice, true);
                        let request = std::mem::replace(&mut self.received, next);
                        let body = received.get(whole.head_bytes..).unwrap_or_default();
                        return self.respond(&running, held, [&request, body], answer).await;
                    }
                    Err(reason) => (reason, Some(connection), received, Vec::new()),
                }
            }
        };
        self.received.append(&mut next);
        let begun = Begun {
            id: id.to_owned(),
            began,
            sent,
            route: outgoing.route.name.clone(),
            model: outgoing.route.id.clone(),
            revision: choice.revision.revision.clone(),
            url: choice.endpoint.url.clone(),
            is_traced: outgoing.is_traced,
            was_idle: connection.as_ref().is_some_and(|one| one.was_idle),
            endpoint: connection.map(|one| one.stream),
            received,
            unsent,
            in_flight: Some(held.in_flight),
            flight: Some(held.flight),
            prefill: held.prefill,
            reserved: held.reserved,
        };
        Next::Python(Refused::of(&outgoing.route, reason), Some(Box::new(begun)))
    }

    /// Where a request goes, and what it holds there. An error says why Python decides.
    async fn admit(&self, outgoing: &Outgoing, id: &str) -> Result<(Choice, Held), &'static str> {
        let (lane, route) = (&self.lane, &outgoing.route);
        if locked(&lane.suspects).may_be_blamed(&outgoing.client, &outgoing.path, outgoing.body.len()) {
            return Err("suspect");
        }
        let owner = outgoing.owner(self.place.owner());
        let in_flight = Place::take(&lane.in_flight, owner).map_err(|_| "in_flight")?;
        let (reserved, tenant) = match &outgoing.metered {
            None => (None, None),
            Some(metered) => {
                let deadline = Instant::now() + lane.settings.patience;
                let handover = self.shared.handover();
                let reserved = Reserved::take(lane, metered, id, handover, deadline).await?;
                (Some(reserved), Some(metered.tenant().name.clone()))
            }
        };
        match self.choose(outgoing, reserved.as_ref(), id) {
            Ok(choice) => {
                let prefill = outgoing.prompt.as_ref().map(|one| lane.prefixes.begin(one, &choice.endpoint.url));
                let flight = Flight::begin(&choice.endpoint, &choice.revision, &route.activity, tenant);
                Ok((choice, Held { flight, in_flight, reserved, prefill }))
            }
            Err(reason) => {
                if let Some(reserved) = reserved {
                    reserved.release();
                }
                Err(reason)
            }
        }
    }

    /// The endpoint of a request. An error says why Python decides.
    fn choose(&self, outgoing: &Outgoing, reserved: Option<&Reserved>, id: &str) -> Result<Choice, &'static str> {
        let route = &outgoing.route;
        // Where it had to wait, there may be another table, which may have been acknowledged.
        if reserved.is_some() && !self.lane.table().has(route) {
            return Err("expired");
        }
        if let Some(reason) = route.why_python() {
            return Err(reason);
        }
        let (lane, keeps_pods) = (&self.lane, self.is_recounted(id));
        let name = outgoing.prompt.as_ref().map(PromptBlocks::name).unwrap_or_default();
        let known = outgoing.prompt.as_ref().map(|prompt| lane.prefixes.known(&prompt.hashes, lane.now_s()));
        let prompted = known.map(|known| Prompted { name: &name, known, keeps_pods });
        let choice = route.pick(&outgoing.key, outgoing.tenant(), prompted.as_ref()).ok_or("no_endpoint")?;
        drop(prompted);
        if reserved.is_some_and(|one| !one.has_room(&choice.revision)) {
            return Err("charges");
        }
        Ok(choice)
    }

    /// The whole response to the client. An error says why Python makes it.
    fn answer(
        &self,
        running: &Running<'_>,
        held: &Held,
        received: &[u8],
        whole: Whole,
        stays: bool,
    ) -> Result<Answer, &'static str> {
        let (outgoing, body) = (running.outgoing, received.get(whole.head_bytes..).ok_or("judged")?);
        if writes_text(&outgoing.path) && !is_good(body) {
            return Err("judged");
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_LINES];
        let mut response = httparse::Response::new(&mut headers);
        response.parse(received).map_err(|_| "response_head")?;
        if let Some(load) = first_value(response.headers, LOAD) {
            self.lane.prefixes.reported(&running.answered_by.url(), load, self.lane.now_s());
        }
        let bill = outgoing.metered.as_ref().map(|one| one.bill(prompt_tokens(response.headers), body));
        let bill = bill.transpose()?;
        let (route, revision) = (&outgoing.route, &running.revision.revision);
        let forwarded: Vec<&str> = route.forwarded.iter().map(String::as_str).collect();
        let mut made = Vec::with_capacity(received.len() + 512);
        made.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        to_client(&mut made, response.headers, &outgoing.request_id, revision, &forwarded).map_err(|why| why.0)?;
        if let Some(reserved) = &held.reserved {
            let is_limit = |name: &str| {
                name.get(..LIMIT_PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(LIMIT_PREFIX))
            };
            if response.headers.iter().any(|header| is_limit(header.name)) {
                return Err("response_head"); // the tenant's own replace them
            }
            reserved.write_headers(&mut made);
        }
        let has = |name: &str| first_value(response.headers, name).is_some();
        let stays = self.end_head(&mut made, whole.body_bytes, [has("date"), has("server")], stays);
        made.extend_from_slice(body);
        Ok(Answer { message: made, stays, bill })
    }

    /// Appends the end of a response's head: its length, what each response has, and whether the connection stays, which it
    /// returns. `date`, `server`: whether it has them.
    pub(super) fn end_head(&self, made: &mut Vec<u8>, length: usize, [date, server]: [bool; 2], stays: bool) -> bool {
        line(made, "Content-Length", itoa::Buffer::new().format(length).as_bytes());
        if !date {
            line(made, "Date", http_date(unix_s() as u64).as_bytes());
        }
        if !server {
            line(made, "Server", self.lane.settings.server.as_bytes());
        }
        let stays = stays && self.lane.is_open() != Err(DRAINING);
        if !stays {
            line(made, "Connection", b"close");
        }
        made.extend_from_slice(b"\r\n");
        stays
    }

    /// Sends a response. The server is done: whatever the client does now does not change the outcome for the judge.
    async fn respond(
        &mut self,
        running: &Running<'_>,
        mut held: Held,
        [request, body]: [&[u8]; 2],
        answer: Answer,
    ) -> Next {
        let first_byte = running.began.elapsed().as_secs_f64();
        held.charge_ahead(answer.bill.as_ref());
        let is_sent = self
            .send(&answer.message, |is_sent| {
                self.responded(running, held, [request, body], (first_byte, answer.bill.as_ref(), is_sent));
            })
            .await;
        if is_sent && answer.stays {
            return Next::Request;
        }
        if is_sent {
            self.stream.close();
        }
        Next::Closed
    }

    /// Counts a request whose client has its response or left. The last: seconds to its first byte, what it costs, and
    /// whether it was sent.
    fn responded(
        &self,
        running: &Running<'_>,
        held: Held,
        [request, body]: [&[u8]; 2],
        (first_byte, bill, is_sent): (f64, Option<&Bill>, bool),
    ) {
        held.end(bill, !is_sent);
        if is_sent {
            let outgoing = running.outgoing;
            locked(&self.lane.suspects).completed(&outgoing.client, &outgoing.path, &outgoing.body);
            self.recount(running, request, body, bill);
        }
        let sent_bytes = if is_sent { body.len() } else { 0 };
        let outcome = if is_sent { "ok" } else { "client_closed" };
        self.ended(running, Some((first_byte, body, bill)), sent_bytes, outcome);
    }

    /// Sends a message. `count` counts its request before any count is taken, so that who has the response finds it there; it
    /// gets what this returns. False: the client left, or did not read for too long.
    pub(super) async fn send(&self, message: &[u8], count: impl FnOnce(bool)) -> bool {
        let (mut unsent, mut is_late) = (message, false);
        loop {
            {
                let _ending = locked(&self.lane.ending);
                if let Some(is_sent) = if is_late { Some(false) } else { self.write(&mut unsent) } {
                    count(is_sent);
                    return is_sent;
                }
            }
            let ready = timeout(self.lane.settings.stall_timeout, self.stream.writable()).await;
            is_late = !matches!(ready, Ok(Ok(())));
        }
    }

    /// Writes what the client takes now. True: it has all. False: it left. None: it has to read before there is room.
    fn write(&self, unsent: &mut &[u8]) -> Option<bool> {
        loop {
            let written = match *unsent {
                [] => self.stream.try_flush().map(|()| 0),
                data => self.stream.try_write(data),
            };
            match written {
                Ok(0) => return Some(true),
                Ok(count) => *unsent = unsent.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => return Some(false),
            }
        }
    }

    /// Counts a first attempt that is over, for the judge and for what Python knows of endpoints.
    fn judge(&self, running: &Running<'_>, choice: &Choice, is_good: bool) {
        let outgoing = running.outgoing;
        let prompt = running.answered_by.prompt();
        if is_good {
            choice.endpoint.successes.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        choice.revision.count(|counts| {
            counts.requests += 1;
            if is_good {
                counts.answered_to(&outgoing.client);
            }
            for (sum, more) in counts.prompt_bytes.iter_mut().zip(prompt.map(|one| one.bytes).unwrap_or_default()) {
                *sum += more as u64;
            }
        });
        let route = &outgoing.route;
        let own = assign_revision(&route.backends, &route.salt, &outgoing.key);
        let (Some(generation), Some(own)) = (&route.generation, own.filter(|_| computes(&outgoing.path))) else {
            return;
        };
        let attempt = EndedAttempt {
            own,
            served: &choice.revision.revision,
            key: &outgoing.key,
            client: outgoing.client.as_bytes(),
            stratum: stratum(outgoing.body.len(), prompt.is_some_and(|one| one.is_cached)),
            seconds: running.sent.elapsed().as_secs_f64(),
            is_good,
        };
        generation.count(&attempt, self.lane.now_s());
    }

    /// Counts a request that ended, and lets Python have what its line and its spans need. `answer`: seconds to its first byte, its body, and what it costs.
    pub(super) fn ended(
        &self,
        running: &Running<'_>,
        answer: Option<(f64, &[u8], Option<&Bill>)>,
        sent_bytes: usize,
        outcome: &'static str,
    ) {
        let (seconds, settings) = (running.began.elapsed().as_secs_f64(), &self.lane.settings);
        let bill = answer.and_then(|(_, _, bill)| bill);
        running.revision.count(|counts| {
            if let AnsweredBy::Copy { kept, .. } = running.answered_by {
                counts.hits += 1;
                counts.saved.add(&saved_by(kept, bill));
            }
            if outcome == "ok" {
                counts.ok += 1;
            } else {
                counts.left += 1;
            }
            counts.seconds.observe(&settings.seconds_bounds, seconds);
            if let Some((first_byte, ..)) = answer {
                counts.ttft.observe(&settings.ttft_bounds, first_byte);
            }
        });
        let place = running.id.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
        let is_logged = settings.logs && (outcome != "ok" || place < settings.log_below);
        if !is_logged && !running.outgoing.is_traced {
            return;
        }
        let (outgoing, revision) = (running.outgoing, running.revision);
        let identity = outgoing.metered.as_ref().map(|one| &one.identity);
        let usage = match (running.answered_by, bill) {
            (AnsweredBy::Copy { kept, .. }, _) => kept.usage,
            (_, Some(bill)) => Some(bill.charge.usage),
            (_, None) => answer.and_then(|(_, body, _)| last_usage(body).ok().flatten()),
        };
        self.shared.handover().log(LogEntry {
            is_logged,
            is_traced: outgoing.is_traced,
            id: running.id.to_owned(),
            request_id: outgoing.request_id.clone(),
            waited_s: running.sent.duration_since(running.began).as_secs_f64(),
            owner: outgoing.owner(self.place.owner()),
            address: self.stream.tcp().peer_addr().map(|peer| peer.ip().to_string()).unwrap_or_default(),
            client_request_id: outgoing.client_request_id.clone(),
            path: outgoing.path.clone(),
            model: revision.model.clone(),
            revision: revision.revision.clone(),
            upstream: running.answered_by.url(),
            code: if outcome == "ok" { 200 } else { 499 },
            outcome,
            ended_s: unix_s(),
            seconds,
            ttft_s: answer.map(|(first_byte, ..)| first_byte),
            bytes_in: running.request_bytes,
            bytes_out: sent_bytes,
            tokens: usage.map(|one| (one.input_tokens, one.output_tokens)),
            is_estimated: bill.is_some_and(|bill| bill.charge.estimated),
            tenant: outgoing.tenant().to_owned(),
            key: identity.map(|one| one.key.to_string()).unwrap_or_default(),
            is_hit: matches!(running.answered_by, AnsweredBy::Copy { .. }),
        });
    }

    /// Whether a request is one of those that Python looks at again. `id`: made by this gateway.
    fn is_recounted(&self, id: &str) -> bool {
        let one_in = self.lane.settings.recount_one_in;
        let number = id.get(8..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(1);
        one_in != 0 && number % one_in == 0
    }

    /// Has Python look at one of so many requests again.
    pub(super) fn recount(&self, running: &Running<'_>, request: &[u8], body: &[u8], bill: Option<&Bill>) {
        if !self.is_recounted(running.id) {
            return;
        }
        let (outgoing, route) = (running.outgoing, &running.outgoing.route);
        let own = assign_revision(&route.backends, &route.salt, &outgoing.key);
        let prompt = running.answered_by.prompt();
        let recount = Recount {
            owner: self.place.owner().to_owned(),
            request: request.to_vec(),
            response: body.to_vec(),
            request_id: outgoing.request_id.clone(),
            route: route.name.clone(),
            model: route.id.clone(),
            salt: route.salt.clone(),
            weights: route.backends.iter().map(|one| (one.revision.clone(), one.weight)).collect(),
            key: outgoing.key.clone(),
            client: outgoing.client.to_string(),
            own: own.unwrap_or_default().to_owned(),
            stratum: stratum(outgoing.body.len(), prompt.is_some_and(|one| one.is_cached)),
            sent: outgoing.body.to_vec(),
            paid: outgoing.metered.as_ref().zip(bill).map(|(metered, bill)| Paid {
                tenant: metered.tenant().name.to_string(),
                key: metered.identity.key.to_string(),
                table: metered.identity.table,
                prompt_tokens: bill.prompt_tokens,
                reserved: (metered.estimate.input_tokens, metered.estimate.output_tokens),
                usage: bill.charge.usage,
                is_estimated: bill.charge.estimated,
                cost_nano: bill.charge.cost_nano,
            }),
            hit: match running.answered_by {
                AnsweredBy::Endpoint { .. } => None,
                AnsweredBy::Copy { kept, digest, chosen, found_s } => Some(Hit {
                    digest: digest.to_vec(),
                    revision: kept.revision.clone(),
                    chosen: chosen.to_owned(),
                    saved: saved_by(kept, bill),
                    found_s,
                }),
            },
            prompt: running.answered_by.recounted_prompt(outgoing),
        };
        self.shared.handover().recount(recount, self.lane.settings.max_recounts);
    }

    /// Gives the connection to Python with all that came over it. Returns it where it is the lane's again: that with TLS
    /// never left, and one without comes back by itself.
    async fn hand_over(mut self, refused: &Refused, begun: Option<Box<Begun>>) -> Option<Self> {
        locked(&self.lane.hand_overs).count(&refused.model, refused.reason);
        let room = self.shared.handover().room().await?;
        let (returns, first_bytes) = (refused.returns, std::mem::take(&mut self.received));
        let owner = self.place.owner().to_owned();
        let stream = match self.stream {
            ClientStream::Plain(tcp) => {
                let socket = tcp.into_std().ok()?.into();
                let (place, encryption) = (Some(self.place), Encryption::None);
                let handed = Handed { socket, first_bytes, owner, place, encryption, begun, returns };
                self.shared.handover().hand(handed, room);
                return None;
            }
            encrypted => encrypted,
        };
        let (bridge, here, socket) = Bridge::open(&stream).ok()?;
        let encryption = Encryption::Bridged(bridge.clone());
        self.shared
            .handover()
            .hand(Handed { socket, first_bytes, owner, place: None, encryption, begun, returns }, room);
        self.held.set(0);
        self.received = bridge.run(&stream, here, self.lane.settings.stall_timeout).await?;
        self.idle_since = Instant::now();
        Some(Connection { stream, ..self })
    }
}

/// What a copy of a kept response did not cost.
fn saved_by(kept: &KeptResponse, bill: Option<&Bill>) -> Saved {
    let saved = bill.and_then(|bill| bill.charge.hit).map(|(_, saved)| saved);
    saved.unwrap_or(Saved { usage: kept.usage.unwrap_or_default(), cost_nano: 0 })
}

/// Bytes that no client can foresee.
fn random_id() -> [u8; ID_BYTES] {
    let mut bytes = [0; ID_BYTES];
    // The kernel has enough of them once it has started.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}

/// A time as `Date` has it.
pub fn http_date(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years begin in March here, so that the day of a leap year is the last one.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = year_of_era + era * 400 + u64::from(month >= 10);
    let name = MONTHS[((month + 2) % 12) as usize];
    let (hour, minute) = (second / 3600, second % 3600 / 60);
    format!("{}, {day:02} {name} {year} {hour:02}:{minute:02}:{:02} GMT", DAYS[(days % 7) as usize], second % 60)
}

#[cfg(test)]
mod tests {
    use super::http_date;

    #[test]
    fn a_date_is_written_as_rfc_9110_has_it() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(1_709_164_800), "Thu, 29 Feb 2024 00:00:00 GMT");
    }
}
