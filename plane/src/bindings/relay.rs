//! Streams of Python's whose events the data plane relays, and how their bodies are read before that.

use std::borrow::Cow;
use std::net::TcpStream as Socket;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::lane::Lane;
use super::listener::duration;
use crate::forwarding::relay::{self, Limits, Passing, Pause};
use crate::handover::locked;
use crate::judging::outcome::StreamTimes;
use crate::quotas::meter::StreamCount;
use crate::quotas::usage::Usage;
use crate::wire::chunks;
use crate::wire::resume::{Progressed, StreamProgress};
use crate::wire::sse::{EventAligner, Held};

type Data = Cow<'static, [u8]>;
type UsageTuple = (i64, i64, i64);
type GivenProgress = (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>, bool, usize);
type GivenCount = (bool, bool, Option<UsageTuple>, i64, i64, bool);
type HeldTuple = (Data, usize, usize, bool);
type ProgressTuple = (Data, Data, Data, Data, bool);
type CountTuple = (Option<UsageTuple>, i64, i64, bool);
type TimesTuple = (f64, i64, Data, bool);

/// Reads the body of a response in chunks.
#[pyclass(frozen)]
#[derive(Default)]
pub struct ChunkDecoder(Arc<Mutex<chunks::ChunkDecoder>>);

#[pymethods]
impl ChunkDecoder {
    #[new]
    fn new() -> Self {
        ChunkDecoder::default()
    }

    fn feed(&self, bytes: &[u8]) -> PyResult<(Data, usize)> {
        let mut out = Vec::new();
        let taken = locked(&self.0).feed(bytes, &mut out);
        taken.map(|taken| (Cow::Owned(out), taken)).map_err(|_| PyValueError::new_err("bytes: they are no chunks"))
    }

    #[getter]
    fn has_ended(&self) -> bool {
        locked(&self.0).has_ended()
    }
}

/// What a stream is passed on with: see `_native.pyi`.
#[derive(FromPyObject)]
pub struct PassingTuple {
    held: (Vec<u8>, usize, usize, bool),
    progress: Option<GivenProgress>,
    count: Option<GivenCount>,
    times: Option<(f64, i64, Vec<u8>, bool)>,
    patience_s: f64,
    counted_bytes: usize,
}

impl From<PassingTuple> for Passing {
    fn from(given: PassingTuple) -> Self {
        let progress = given.progress.map(|(begin, end, last, last_token, is_whole, before)| {
            StreamProgress::of(Progressed { begin, end, last, last_token, is_whole }, before)
        });
        let count = given.count.map(|(strips_usage, echoes, reported, relayed_bytes, output_tokens, is_marked)| {
            let reported = reported.map(|(input_tokens, output_tokens, cached_tokens)| Usage {
                input_tokens,
                output_tokens,
                cached_tokens,
            });
            StreamCount { strips_usage, echoes, reported, relayed_bytes, output_tokens, is_marked }
        });
        let times = given.times.map(|(last_s, events, tail, is_cut)| StreamTimes { last_s, events, tail, is_cut });
        Passing {
            aligner: EventAligner::holding(given.held),
            progress,
            count,
            times,
            patience_s: given.patience_s,
            counted_bytes: given.counted_bytes,
        }
    }
}

/// What Python goes on from.
#[pyclass(frozen, get_all)]
pub struct Passed {
    held: HeldTuple,
    progress: Option<(ProgressTuple, Data)>,
    count: Option<CountTuple>,
    times: Option<TimesTuple>,
    events: u64,
    sent_bytes: u64,
    stalled_s: f64,
    data: Data,
    unsent: Data,
    pieces: Vec<Data>,
}

fn count_tuple(one: StreamCount) -> CountTuple {
    let reported = one.reported.map(|usage| (usage.input_tokens, usage.output_tokens, usage.cached_tokens));
    (reported, one.relayed_bytes, one.output_tokens, one.is_marked)
}

impl Passed {
    fn new((passing, passed): (Passing, relay::Passed)) -> Self {
        let (held, begin, followed, is_after_comment): Held = passing.aligner.held();
        let progress = passing.progress.map(|one| {
            let (Progressed { begin, end, last, last_token, is_whole }, tokens) = one.into_parts();
            (
                (Cow::Owned(begin), Cow::Owned(end), Cow::Owned(last), Cow::Owned(last_token), is_whole),
                Cow::Owned(tokens),
            )
        });
        let count = passing.count.map(count_tuple);
        Passed {
            held: (Cow::Owned(held), begin, followed, is_after_comment),
            progress,
            count,
            times: passing.times.map(|one| (one.last_s, one.events, Cow::Owned(one.tail), one.is_cut)),
            events: passed.events,
            sent_bytes: passed.sent_bytes,
            stalled_s: passed.stalled_s,
            data: Cow::Owned(passed.data),
            unsent: Cow::Owned(passed.unsent),
            pieces: passed.pieces.into_iter().map(Cow::Owned).collect(),
        }
    }
}

#[pyclass(frozen)]
pub struct EventRelay(Arc<relay::EventRelay>);

#[pymethods]
impl EventRelay {
    #[new]
    #[pyo3(signature = (id, client, server, decoder, *, silence_s, stall_s, now_s))]
    fn new(
        id: u64,
        client: i32,
        server: i32,
        decoder: &ChunkDecoder,
        silence_s: f64,
        stall_s: f64,
        now_s: f64,
    ) -> PyResult<Self> {
        if client < 0 || server < 0 {
            return Err(PyValueError::new_err("client, server: a descriptor is negative"));
        }
        // SAFETY: the caller made these descriptors for the relay, so that nothing else closes them.
        let own = |descriptor| Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let sockets = (own(client), own(server));
        let silence = (silence_s > 0.0).then(|| duration("silence_s", silence_s)).transpose()?;
        let limits = Limits { silence, stall: duration("stall_s", stall_s)?, now_s };
        Ok(EventRelay(Arc::new(relay::EventRelay::new(id, sockets, decoder.0.clone(), limits))))
    }

    fn begin(&self, lane: &Lane, passing: PassingTuple, keeps_pieces: bool) -> bool {
        self.0.go_on(passing.into(), keeps_pieces);
        let runs = lane.0.relay(self.0.clone());
        if !runs {
            self.0.lose();
        }
        runs
    }

    fn go_on(&self, passing: PassingTuple, keeps_pieces: bool) -> bool {
        self.0.go_on(passing.into(), keeps_pieces)
    }

    fn stop(&self) {
        self.0.stop();
    }

    /// Why it pauses, and a number that belongs to that: an error of the system, or whether nothing follows the response.
    #[getter]
    fn paused(&self) -> Option<(&'static str, i32)> {
        self.0.paused().map(|why| match why {
            Pause::New => ("new", 0),
            Pause::Done => ("done", 0),
            Pause::Room => ("room", 0),
            Pause::Silent => ("silent", 0),
            Pause::Kept => ("kept", 0),
            Pause::Events => ("events", 0),
            Pause::Long => ("long", 0),
            Pause::End { is_clean } => ("end", i32::from(is_clean)),
            Pause::Eof => ("eof", 0),
            Pause::Broken(errno) => ("broken", errno),
            Pause::Malformed => ("malformed", 0),
            Pause::Timeout => ("timeout", 0),
            Pause::Left => ("left", 0),
            Pause::Stalled => ("stalled", 0),
            Pause::Lost => ("lost", 0),
        })
    }

    #[getter]
    fn silent_since_s(&self) -> f64 {
        self.0.silent_since_s()
    }

    #[getter]
    fn count(&self) -> Option<CountTuple> {
        self.0.count().map(count_tuple)
    }

    fn take(&self) -> Passed {
        Passed::new(self.0.take())
    }
}
