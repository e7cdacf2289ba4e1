//! Follows one request of a tenant: what it reserved, what its server reported, what it is charged in the end.

use std::borrow::Cow;

use super::bounds::UsageBound;
use super::estimate::Estimate;
use super::usage::{
    count_events, last_usage, marked_position, usage_of_final_event, usage_of_response, without_usage_event, Found,
    Usage, MAX_RESPONSE_BYTES, MAX_USAGE_BYTES,
};
use crate::wire::json_values::NotSure;

/// Of a response whose end alone is read: what is kept, and when it is cut to that.
const TAIL_BYTES: usize = 2 * MAX_USAGE_BYTES;
const READ_EVERY_BYTES: usize = 64 << 10;

/// How a response goes on from an earlier one, as its head says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beginning {
    /// Prompt tokens as the server counted them.
    pub prompt_tokens: Option<i64>,
    /// It goes on where the client lost its stream; else it is a response of its own.
    pub continues: bool,
    /// Its server computes the tokens before that position again, which is paid for once more.
    pub recomputes: bool,
    /// It goes on when the client leaves, which comes back for the rest.
    pub goes_on: bool,
}

/// What events of a stream report, and what is counted of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCount {
    /// The gateway, not the client, requested the usage.
    pub strips_usage: bool,
    /// The response repeats JSON of the request.
    pub echoes: bool,
    pub reported: Option<Usage>,
    pub relayed_bytes: i64,
    pub output_tokens: i64,
    pub is_marked: bool,
}

impl StreamCount {
    /// The usage in whole events, which `add` takes.
    ///
    /// # Errors
    /// NotSure: Python may read it differently.
    pub fn look(&self, events: &[u8]) -> Found {
        if self.echoes {
            usage_of_final_event(events)
        } else {
            last_usage(events)
        }
    }

    /// Counts whole events as the server sent them; returns them as the client gets them.
    pub fn add<'e>(&mut self, events: &'e [u8], found: Option<Usage>) -> Cow<'e, [u8]> {
        self.relayed_bytes = self.relayed_bytes.saturating_add(events.len() as i64);
        if let Some(position) = marked_position(events) {
            self.is_marked = true;
            self.output_tokens = self.output_tokens.max(position);
        } else if !self.is_marked {
            self.output_tokens = self.output_tokens.saturating_add(count_events(events));
        }
        self.reported = found.or(self.reported);
        let stripped = if self.strips_usage { without_usage_event(events) } else { None };
        stripped.map_or(Cow::Borrowed(events), Cow::Owned)
    }
}

/// One request. `begin` is called for a response with status 200, then `add_events` or `add_body`.
#[derive(Clone, Debug)]
pub struct Meter {
    pub estimate: Estimate,
    bound: UsageBound,
    /// To a server.
    pub sent: bool,
    /// By one, whatever the response.
    pub answered: bool,
    begun: bool,
    resumed_at: i64,
    recomputed: i64,
    goes_on: bool,
    prompt_tokens: Option<i64>,
    count: StreamCount,
    /// Of a response that is no stream: its end, or all of it where it echoes the request.
    body: Vec<u8>,
    /// Whether `body` may have a usage that `reported` has not.
    unread: bool,
    /// Set once bytes had a usage that Python has to read: then this meter knows nothing.
    not_sure: Option<NotSure>,
}

impl Meter {
    /// `bound`: of its usage. `resumed_at`: the client has the tokens up to this position from before. `strips_usage`:
    /// the gateway, not the client, requested the usage of the stream. `echoes`: the response repeats JSON of the
    /// request.
    pub fn new(estimate: Estimate, bound: UsageBound, resumed_at: i64, strips_usage: bool, echoes: bool) -> Self {
        Meter {
            estimate,
            bound,
            sent: false,
            answered: false,
            begun: false,
            resumed_at,
            recomputed: 0,
            goes_on: false,
            prompt_tokens: None,
            count: StreamCount { strips_usage, echoes, ..StreamCount::default() },
            body: Vec::new(),
            unread: false,
            not_sure: None,
        }
    }

    /// A response begins.
    pub fn begin(&mut self, beginning: &Beginning) {
        self.begun = true;
        self.goes_on = beginning.goes_on;
        self.recomputed = if beginning.continues && beginning.recomputes { self.resumed_at } else { 0 };
        self.resumed_at = if beginning.continues { self.resumed_at } else { 0 };
        self.prompt_tokens = beginning.prompt_tokens;
    }

    pub fn is_begun(&self) -> bool {
        self.begun
    }

    /// Counts whole events of the stream as the server sent them; returns them as the client gets them.
    pub fn add_events<'e>(&mut self, events: &'e [u8]) -> Cow<'e, [u8]> {
        let found = self.count.look(events);
        let noted = found.as_ref().ok().copied().flatten();
        self.not_sure = self.not_sure.or(found.err());
        self.count.add(events, noted)
    }

    /// Keeps a part of a response that is no stream, for its usage. It runs for every part, so it reads nothing.
    pub fn add_body(&mut self, chunk: &[u8]) {
        self.count.relayed_bytes = self.count.relayed_bytes.saturating_add(chunk.len() as i64);
        if self.count.echoes && self.body.len() > MAX_RESPONSE_BYTES {
            return; // it is too long to be read
        }
        self.unread = true;
        let is_first = self.body.is_empty();
        self.body.extend_from_slice(chunk);
        if !is_first && !self.count.echoes && self.body.len() > READ_EVERY_BYTES {
            self.read();
            let begin = self.body.len().saturating_sub(TAIL_BYTES);
            self.body.drain(..begin);
        }
    }

    /// The usage within the request's bound: as the server reported it, else as counted here; and whether it is the
    /// latter. A prompt's length may be the estimate.
    ///
    /// # Errors
    /// NotSure: the server reported what Python may read differently.
    pub fn usage(&mut self) -> Result<(Usage, bool), NotSure> {
        let claimed = self.claimed()?;
        let relayed = self.resumed_at.saturating_add(self.count.relayed_bytes);
        Ok((self.bound.clamp(claimed, relayed), self.is_estimated()))
    }

    /// The usage that the server reported, if the request cannot have caused it; else None.
    ///
    /// # Errors
    /// As `usage`.
    pub fn implausible(&mut self) -> Result<Option<Usage>, NotSure> {
        let (usage, estimated) = self.usage()?;
        let claimed = self.claimed()?;
        Ok((!estimated && claimed != usage).then_some(claimed))
    }

    /// Amounts of requests, input and output tokens that the request is charged in the end; None: it keeps what it
    /// reserved. `left`: the client closed the connection before the end of the response.
    ///
    /// # Errors
    /// As `usage`.
    pub fn used(&mut self, left: bool) -> Result<[Option<i64>; 3], NotSure> {
        if !self.begun {
            let keeps = left && self.sent;
            let nothing = [Some(i64::from(self.answered)), Some(0), Some(0)];
            return Ok(if keeps { [None; 3] } else { nothing });
        }
        let (usage, _) = self.usage()?;
        let output = (usage.output_tokens - self.resumed_at).saturating_add(self.recomputed).max(0);
        let is_unknown = left && self.count.reported.is_none() && (self.goes_on || self.count.output_tokens == 0);
        if is_unknown && output <= self.estimate.output_tokens {
            return Ok([Some(1), Some(usage.input_tokens), None]);
        }
        Ok([Some(1), Some(usage.input_tokens), Some(output)])
    }

    fn claimed(&mut self) -> Result<Usage, NotSure> {
        self.read();
        if let Some(reason) = self.not_sure {
            return Err(reason);
        }
        Ok(self.count.reported.unwrap_or_else(|| Usage {
            input_tokens: self.prompt_tokens.unwrap_or(self.estimate.input_tokens),
            output_tokens: self.count.output_tokens.max(self.recomputed),
            cached_tokens: 0,
        }))
    }

    /// After `claimed`, which reads what is there.
    fn is_estimated(&self) -> bool {
        self.count.reported.is_none() && !(self.count.is_marked && self.prompt_tokens.is_some())
    }

    fn read(&mut self) {
        if !self.unread {
            return;
        }
        self.unread = false;
        if !self.count.echoes {
            let found = last_usage(&self.body);
            self.note(found);
            return;
        }
        self.count.reported = None;
        if self.body.len() <= MAX_RESPONSE_BYTES {
            let found = usage_of_response(&self.body);
            self.note(found);
        }
    }

    fn note(&mut self, found: Result<Option<Usage>, NotSure>) {
        match found {
            Ok(usage) => self.count.reported = usage.or(self.count.reported),
            Err(reason) => self.not_sure = Some(reason),
        }
    }
}
