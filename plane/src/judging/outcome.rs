//! What the judge needs to know of the events of a stream that pass: the part of Python's `OutcomeRecorder` that runs
//! for each of them.

use memchr::memmem;

use crate::wire::sse::{DONE, FOLLOWED};

/// Of the end of a stream, which is looked at for failures; `SLACK_BYTES`: so that it is not cut at every token.
const TAIL_BYTES: usize = 16 << 10;
const SLACK_BYTES: usize = 4 << 10;

/// Events behind the first ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamTimes {
    /// When the last ones passed, in seconds.
    pub last_s: f64,
    pub events: i64,
    pub tail: Vec<u8>,
    pub is_cut: bool,
}

impl StreamTimes {
    /// Events passed, and not the first ones of the stream.
    pub fn add(&mut self, events: &[u8], now_s: f64) {
        self.tail.extend_from_slice(events);
        if self.tail.len() > TAIL_BYTES + SLACK_BYTES {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
            self.is_cut = true;
        }
        if events == DONE {
            return;
        }
        let count = |what: &[u8]| memmem::find_iter(events, what).count() as i64;
        let whole = match count(b"\n\n") {
            0 => count(b"\r\n\r\n").max(1),
            whole => whole,
        };
        self.events += whole - i64::from(events.ends_with(DONE)) - count(FOLLOWED);
        self.last_s = now_s;
    }
}
