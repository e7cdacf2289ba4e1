//! The events of one stream, from its server to its client, while nothing but events happens. Mirrors the loop of
//! `forwarding/relay.py`, whose request it stays: Python has begun the response, ends it, and decides all that is not
//! the next event. Then this pauses, and Python may have it go on.

use std::cell::RefCell;
use std::io;
use std::net::TcpStream as Socket;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memchr::memmem;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep_until;

use crate::handover::locked;
use crate::judging::outcome::StreamTimes;
use crate::listener::{Panics, Shared};
use crate::quotas::meter::StreamCount;
use crate::wire::chunks::{write_chunk, ChunkDecoder};
use crate::wire::resume::StreamProgress;
use crate::wire::sse::{split_crash_comment, EventAligner, DONE};

/// What is read of a server at once, as Python does (`limits/transports.py`).
const READ_BYTES: usize = 64 << 10;
/// Longer data is Python's to send: it may evict a client that does not read it.
const MAX_WRITE_BYTES: usize = 64 << 10;
/// Memory is counted by Python in steps of this size.
const STEP_BYTES: usize = 4 << 10;
/// Pieces of a stream that is counted again wait for that up to this size.
const MAX_KEPT_BYTES: usize = 64 << 10;
/// Reads of one stream before others have their turn.
const MAX_READS: usize = 8;
/// Far enough for a timer that is not needed.
const LONG: Duration = Duration::from_secs(86_400);

thread_local! {
    /// One for all streams of the thread: what was read, the data in it, and what is written.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch { read: vec![0; READ_BYTES], data: Vec::new(), out: Vec::new() });
}

struct Scratch {
    read: Vec<u8>,
    data: Vec<u8>,
    out: Vec<u8>,
}

/// Why Python has to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pause {
    /// It was not begun.
    #[default]
    New,
    /// The last event of OpenAI's streams was sent.
    Done,
    /// More memory is held than was counted.
    Room,
    /// The server was silent for longer than the judge allows.
    Silent,
    /// Enough pieces are kept to be counted again.
    Kept,
    /// These events need a look that is Python's.
    Events,
    /// This data is long, and is Python's to send.
    Long,
    /// The response ended; whether nothing follows it on its connection.
    End {
        is_clean: bool,
    },
    /// The server closed the connection, or it broke with this error of the system.
    Eof,
    Broken(i32),
    /// What it sent are no chunks.
    Malformed,
    /// It sent nothing for too long.
    Timeout,
    /// The client is gone, or did not read for too long.
    Left,
    Stalled,
    /// The thread that ran it has ended.
    Lost,
}

/// What is fixed for one server of a stream. `now_s`: of Python's clock.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub silence: Option<Duration>,
    pub stall: Duration,
    pub now_s: f64,
}

/// What both lanes go on from: what Python had, and has again when this pauses.
#[derive(Debug, Default)]
pub struct Passing {
    pub aligner: EventAligner,
    /// None: the server does not mark its events.
    pub progress: Option<StreamProgress>,
    /// None: no tenant pays.
    pub count: Option<StreamCount>,
    /// None: it is no first attempt.
    pub times: Option<StreamTimes>,
    /// Seconds that the server may be silent before this pauses.
    pub patience_s: f64,
    /// Bytes of memory that Python has counted.
    pub counted_bytes: usize,
}

/// What happened since it last went on.
#[derive(Debug, Default)]
pub struct Passed {
    /// Events, by their ends.
    pub events: u64,
    /// Of data, which the client's socket has.
    pub sent_bytes: u64,
    /// In which the client did not read what was there for it.
    pub stalled_s: f64,
    /// For Python: events that nothing has counted, or data that was counted and not sent.
    pub data: Vec<u8>,
    /// The rest of a chunk that the client has a part of.
    pub unsent: Vec<u8>,
    /// Pieces of the body, where they are kept to be counted again.
    pub pieces: Vec<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Runs,
    Paused(Pause),
    Stopped,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    /// Whether Python has the news of the pause.
    is_known: bool,
    passing: Passing,
    passed: Passed,
    /// How many bytes `passed.unsent` had in all, of data, and how many of it the client has.
    unsent_data: u64,
    unsent_at: usize,
    stalled_since: Option<f64>,
    is_lost: bool,
    is_done: bool,
    end: Option<Pause>,
    /// What passes is counted again: so much is kept of it.
    keeps_pieces: bool,
    kept_bytes: usize,
}

/// One stream at one server.
#[derive(Debug)]
pub struct EventRelay {
    pub id: u64,
    limits: Limits,
    began: Instant,
    sockets: Mutex<Option<(Socket, Socket)>>,
    /// Shared with Python's connection to the server, which goes on with it.
    decoder: Arc<Mutex<ChunkDecoder>>,
    inner: Mutex<Inner>,
    changed: Notify,
    /// Since when the server is awaited, as bits of seconds.
    silent_since: AtomicU64,
}

enum Step {
    Stopped,
    Paused,
    Again,
    /// Waits for the client, or for the server, until then.
    Client(f64),
    Server(f64),
}

impl EventRelay {
    /// `sockets`: of the client and of the server; nothing else reads or writes them while this runs.
    pub fn new(id: u64, sockets: (Socket, Socket), decoder: Arc<Mutex<ChunkDecoder>>, limits: Limits) -> Self {
        EventRelay {
            id,
            limits,
            began: Instant::now(),
            sockets: Mutex::new(Some(sockets)),
            decoder,
            inner: Mutex::new(Inner {
                phase: Phase::Paused(Pause::New),
                is_known: true,
                passing: Passing::default(),
                passed: Passed::default(),
                unsent_data: 0,
                unsent_at: 0,
                stalled_since: None,
                is_lost: false,
                is_done: false,
                end: None,
                keeps_pieces: false,
                kept_bytes: 0,
            }),
            changed: Notify::new(),
            silent_since: AtomicU64::new(f64::INFINITY.to_bits()),
        }
    }

    /// Since when the server is awaited, on Python's clock; infinity while it is not.
    pub fn silent_since_s(&self) -> f64 {
        f64::from_bits(self.silent_since.load(Ordering::SeqCst))
    }

    /// It goes on, or begins, unless it was stopped. `keeps_pieces`: what passes is counted again. False: nothing runs it.
    pub fn go_on(&self, passing: Passing, keeps_pieces: bool) -> bool {
        let mut inner = locked(&self.inner);
        let runs = !inner.is_lost;
        if matches!(inner.phase, Phase::Paused(_)) {
            inner.phase = if runs { Phase::Runs } else { Phase::Paused(Pause::Lost) };
            (inner.is_known, inner.passing) = (false, passing);
            (inner.keeps_pieces, inner.kept_bytes) = (keeps_pieces, 0);
            self.waits_for_server(self.now_s());
        }
        drop(inner);
        self.changed.notify_one();
        runs
    }

    /// Nothing is read or written any more once this returns, and the sockets are closed within moments.
    pub fn stop(&self) -> Option<Pause> {
        let mut inner = locked(&self.inner);
        let phase = std::mem::replace(&mut inner.phase, Phase::Stopped);
        inner.stalled(self.now_s());
        drop(inner);
        drop(locked(&self.sockets).take());
        self.changed.notify_one();
        match phase {
            Phase::Paused(why) => Some(why),
            _ => None,
        }
    }

    /// Why it pauses; None: it runs, or was stopped.
    pub fn paused(&self) -> Option<Pause> {
        match locked(&self.inner).phase {
            Phase::Paused(why) => Some(why),
            _ => None,
        }
    }

    /// What a tenant pays for so far; None: nothing, or Python has it.
    pub fn count(&self) -> Option<StreamCount> {
        locked(&self.inner).passing.count
    }

    /// What Python has again, while this does not run.
    pub fn take(&self) -> (Passing, Passed) {
        let mut inner = locked(&self.inner);
        let sent = std::mem::take(&mut inner.unsent_at);
        inner.passed.unsent.drain(..sent);
        (std::mem::take(&mut inner.passing), std::mem::take(&mut inner.passed))
    }

    fn now_s(&self) -> f64 {
        self.limits.now_s + self.began.elapsed().as_secs_f64()
    }

    fn instant(&self, at_s: f64) -> tokio::time::Instant {
        let after = (at_s - self.limits.now_s).clamp(0.0, LONG.as_secs_f64() + self.began.elapsed().as_secs_f64());
        (self.began + Duration::from_secs_f64(after)).into()
    }

    fn waits_for_server(&self, since_s: f64) {
        self.silent_since.store(since_s.to_bits(), Ordering::SeqCst);
    }

    /// Does what can be done at once.
    fn step(&self, client: &TcpStream, server: &mut TcpStream) -> Step {
        for _ in 0..MAX_READS {
            let mut guard = locked(&self.inner);
            let inner = &mut *guard;
            match inner.phase {
                Phase::Stopped => return Step::Stopped,
                Phase::Paused(_) => return Step::Paused,
                Phase::Runs => {}
            }
            if let Some(wait) = self.write(inner, client).or_else(|| self.read(inner, client, server)) {
                return wait;
            }
        }
        Step::Again
    }

    /// Writes what is left. None: nothing is.
    fn write(&self, inner: &mut Inner, client: &TcpStream) -> Option<Step> {
        if inner.unsent_data == 0 {
            return None;
        }
        while let Some(rest) = inner.passed.unsent.get(inner.unsent_at..).filter(|rest| !rest.is_empty()) {
            match client.try_write(rest) {
                Ok(count) => inner.unsent_at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(self.stalls(inner)),
                Err(_) => return Some(inner.pause(Pause::Left)),
            }
        }
        let now_s = self.now_s();
        inner.stalled(now_s);
        inner.passed.sent_bytes += std::mem::take(&mut inner.unsent_data);
        (inner.passed.unsent, inner.unsent_at) = (Vec::new(), 0);
        self.waits_for_server(now_s);
        None
    }

    fn stalls(&self, inner: &mut Inner) -> Step {
        let since_s = *inner.stalled_since.get_or_insert_with(|| self.now_s());
        let due_s = since_s + self.limits.stall.as_secs_f64();
        if self.now_s() >= due_s {
            inner.stalled(self.now_s());
            return inner.pause(Pause::Stalled);
        }
        Step::Client(due_s)
    }

    /// Reads once and passes that on. None: something came.
    fn read(&self, inner: &mut Inner, client: &TcpStream, server: &mut TcpStream) -> Option<Step> {
        if let Some(why) = inner.due() {
            return Some(inner.pause(why));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let (now_s, since_s) = (self.now_s(), self.silent_since_s());
            if now_s - since_s > inner.passing.patience_s {
                return Some(inner.pause(Pause::Silent));
            }
            let size = match read_once(server, &mut scratch.read) {
                Ok(0) => return Some(inner.pause(Pause::Eof)),
                Ok(size) => size,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let due_s = self.limits.silence.map_or(f64::INFINITY, |most| since_s + most.as_secs_f64());
                    let is_due = now_s >= due_s;
                    return Some(if is_due { inner.pause(Pause::Timeout) } else { Step::Server(due_s) });
                }
                Err(error) => return Some(inner.pause(Pause::Broken(error.raw_os_error().unwrap_or(0)))),
            };
            self.waits_for_server(f64::INFINITY);
            scratch.data.clear();
            let mut decoder = locked(&self.decoder);
            let taken = decoder.feed(scratch.read.get(..size).unwrap_or_default(), &mut scratch.data);
            inner.end = match taken {
                Err(_) => Some(Pause::Malformed),
                Ok(taken) => decoder.has_ended().then_some(Pause::End { is_clean: taken == size }),
            };
            drop(decoder);
            let waits = inner.pass(&scratch.data, now_s, &mut scratch.out);
            if waits.is_none() && !scratch.out.is_empty() {
                self.begin_write(inner, client, &scratch.out);
            }
            if inner.unsent_data == 0 {
                self.waits_for_server(self.now_s());
            }
            waits
        })
    }

    /// Writes data as one chunk, and keeps what the socket does not take.
    fn begin_write(&self, inner: &mut Inner, client: &TcpStream, chunk: &[u8]) {
        let sent = client.try_write(chunk).unwrap_or(0); // an error is there at the next try too
        if sent == chunk.len() {
            inner.passed.sent_bytes += std::mem::take(&mut inner.unsent_data);
        } else {
            inner.passed.unsent = chunk.get(sent..).unwrap_or_default().to_vec();
        }
    }

    /// The thread does not run it any more.
    pub fn lose(&self) {
        let mut inner = locked(&self.inner);
        inner.is_lost = true;
        if inner.phase == Phase::Runs {
            // After a panic it is not known what the client has.
            inner.phase = Phase::Paused(if std::thread::panicking() { Pause::Left } else { Pause::Lost });
        }
    }

    /// Whether Python has no news of a pause yet.
    fn takes_pause(&self) -> bool {
        let mut inner = locked(&self.inner);
        matches!(inner.phase, Phase::Paused(_)) && !std::mem::replace(&mut inner.is_known, true)
    }
}

impl Inner {
    fn pause(&mut self, why: Pause) -> Step {
        self.phase = Phase::Paused(why);
        Step::Paused
    }

    /// What Python has to know before the next read.
    fn due(&mut self) -> Option<Pause> {
        if std::mem::take(&mut self.is_done) {
            return Some(Pause::Done);
        }
        let held = self.passing.aligner.held_bytes();
        let kept = self.passing.progress.as_ref().map_or(0, StreamProgress::size_bytes);
        if (held + kept).saturating_sub(self.passing.counted_bytes) >= STEP_BYTES {
            return Some(Pause::Room);
        }
        if self.kept_bytes >= MAX_KEPT_BYTES {
            return Some(Pause::Kept);
        }
        self.end.take()
    }

    /// Counts the time in which the client did not read.
    fn stalled(&mut self, now_s: f64) {
        if let Some(since_s) = self.stalled_since.take() {
            self.passed.stalled_s += now_s - since_s;
        }
    }

    /// Passes a part of the body on: `out` has the chunk for the client, where there is one.
    fn pass(&mut self, data: &[u8], now_s: f64, out: &mut Vec<u8>) -> Option<Step> {
        out.clear();
        if data.is_empty() {
            return None;
        }
        if self.keeps_pieces {
            self.kept_bytes += data.len();
            self.passed.pieces.push(data.to_vec());
        }
        let Passing { aligner, progress, count, times, .. } = &mut self.passing;
        let events = aligner.feed(data);
        if events.is_empty() {
            return None;
        }
        let found = count.as_ref().map_or(Ok(None), |count| count.look(&events));
        let (Ok(usage), (_, false)) = (found, split_crash_comment(&events)) else {
            self.passed.data = events.into_owned();
            return Some(self.pause(Pause::Events));
        };
        self.passed.events += memmem::find_iter(&events, b"\n\n").count() as u64;
        if let Some(times) = times {
            times.add(&events, now_s);
        }
        let counted = match count {
            Some(count) => count.add(&events, usage),
            None => std::borrow::Cow::Borrowed(&*events),
        };
        let mut ready = Vec::new();
        let ready: &[u8] = match progress {
            Some(progress) if !counted.is_empty() => {
                progress.add_ids(&counted, &mut ready);
                &ready
            }
            _ => &counted,
        };
        if ready.len() > MAX_WRITE_BYTES {
            self.passed.data = ready.to_vec();
            return Some(self.pause(Pause::Long));
        }
        if !ready.is_empty() {
            self.is_done = ready.ends_with(DONE);
            self.unsent_data = ready.len() as u64;
            write_chunk(out, ready);
        }
        None
    }
}

/// Reads what is there. Unlike `try_read`, it knows by a short read that nothing more is, without another call of the
/// system for each event.
fn read_once(server: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    let mut read = ReadBuf::new(into);
    match Pin::new(server).poll_read(&mut Context::from_waker(Waker::noop()), &mut read) {
        Poll::Ready(result) => result.map(|()| read.filled().len()),
        // Also where the task has had its turn: then the `select!` that follows yields.
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Runs a relay until it is stopped.
pub(crate) async fn run(shared: Arc<Shared>, relay: Arc<EventRelay>) {
    let lost = Lost::of(&shared, &relay);
    let _panics = Panics(shared.clone());
    let Some((client, server)) = locked(&relay.sockets).take() else { return };
    let (Ok(client), Ok(mut server)) = (TcpStream::from_std(client), TcpStream::from_std(server)) else { return };
    loop {
        match relay.step(&client, &mut server) {
            Step::Stopped => break,
            Step::Again => yield_now().await,
            Step::Paused => {
                if relay.takes_pause() {
                    shared.handover().relay_paused(relay.id);
                }
                relay.changed.notified().await;
            }
            Step::Client(due_s) => tokio::select! {
                biased;
                () = relay.changed.notified() => {}
                _ = client.writable() => {}
                () = sleep_until(relay.instant(due_s)) => {}
            },
            Step::Server(due_s) => tokio::select! {
                biased;
                () = relay.changed.notified() => {}
                _ = server.readable() => {}
                () = sleep_until(relay.instant(due_s)) => {}
            },
        }
    }
    drop(lost);
}

/// Pauses a relay that nothing runs any more, however that came.
pub(crate) struct Lost {
    shared: Arc<Shared>,
    relay: Arc<EventRelay>,
}

impl Lost {
    pub(crate) fn of(shared: &Arc<Shared>, relay: &Arc<EventRelay>) -> Self {
        Lost { shared: shared.clone(), relay: relay.clone() }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        self.relay.lose();
        if self.relay.takes_pause() {
            self.shared.handover().relay_paused(self.relay.id);
        }
    }
}
