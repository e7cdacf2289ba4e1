//! What the listener has for Python: connections with their first bytes, and counts. Python is woken by an eventfd.
//!
//! Connections that Python has not taken yet are bounded: beyond that, what clients send waits in the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};
use tokio::net::TcpStream as Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::balancing::in_flight::Flight;
use crate::balancing::prefix_affinity::Prefill;
use crate::limits::places::{Places, Refusal};
use crate::serving::admission::Reserved;
use crate::serving::bridge::Bridge;
use crate::sharing::counters::{Call, Settlement};
use crate::telemetry::access_log::{LogEntry, Recount};

/// Connections that may wait for Python with their first bytes.
pub const MOST_UNTAKEN: usize = 64;
/// What is read of a connection before Python has it, so that 4 MiB at most wait. As much as Python reads at once
/// (`limits/transports.py`): a head that comes whole counts whole, or not at all.
pub const FIRST_BYTES: usize = 64 << 10;

/// Calls and settlements of limits that gateways share wait so long for others, while answers are awaited.
const SOON: Duration = Duration::from_millis(2);
/// Settlements wait so long for calls that take them along.
const LATER: Duration = Duration::from_millis(10);

/// Entries for the access log that may wait.
const MAX_LOGGED: usize = 8192;
/// So many requests to count again wait until Python looks by itself; with more it is woken.
const MAX_QUIET_RECOUNTS: usize = 64;

/// A place among the connections of the port; it is given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Mutex<Places>>,
    owner: String,
    is_kept: bool,
}

impl Place {
    pub fn take(places: &Arc<Mutex<Places>>, owner: String) -> Result<Place, Refusal> {
        locked(places).take(&owner)?;
        Ok(Place { places: places.clone(), owner, is_kept: false })
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The place stays taken: who calls this gives it back.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_kept {
            locked(&self.places).leave(&self.owner);
        }
    }
}

/// A request that the fast lane has sent to an endpoint, and that Python goes on with.
#[derive(Debug)]
pub struct Begun {
    /// Made by this gateway.
    pub id: String,
    pub began: Instant,
    pub sent: Instant,
    pub route: String,
    pub model: String,
    pub revision: String,
    pub url: String,
    /// Its endpoint was told that its spans are recorded.
    pub is_traced: bool,
    /// The connection to the endpoint; None: none could be opened.
    pub endpoint: Option<Connection>,
    /// The connection waited for this request.
    pub was_idle: bool,
    /// Of the response, and what was not sent of the request.
    pub received: Vec<u8>,
    pub unsent: Vec<u8>,
    /// Counts of it, which stay until Python has its own.
    pub in_flight: Option<Place>,
    pub flight: Option<Flight>,
    /// Its prompt at its endpoint; None where that has no part in the choice of endpoints.
    pub prefill: Option<Prefill>,
    /// What it took from the limits of its tenant.
    pub reserved: Option<Reserved>,
}

/// A connection that Python is to serve. Dropped, it is closed and its place is free.
#[derive(Debug)]
pub struct Handed {
    /// The client's socket, or Python's end of a bridge.
    pub socket: OwnedFd,
    pub first_bytes: Vec<u8>,
    /// Of its address.
    pub owner: String,
    /// None: the bridge has it.
    pub place: Option<Place>,
    pub encryption: Encryption,
    /// Its first request, where that was sent to an endpoint.
    pub begun: Option<Box<Begun>>,
    pub returns: Returns,
}

/// TLS of a connection, as far as Python has to know.
#[derive(Debug)]
pub enum Encryption {
    None,
    /// Its first bytes are those of a handshake, which Python does. Nothing was read.
    Ahead,
    /// The session is here, and Python has its plain bytes.
    Bridged(Arc<Bridge>),
}

/// Whether Python may give a connection back once it waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// What its client sends is nothing for the fast lane.
    Never,
    /// The next request may be plain.
    AtOnce,
    /// The next table may have plain routes for it.
    WithTable,
}

/// What happened since Python last took the news.
#[derive(Debug, Default)]
pub struct News {
    pub handed: Vec<Handed>,
    /// Connections that were refused: all places are taken, or all of the address.
    pub refused_total: u64,
    pub refused_share: u64,
    /// TLS handshakes that ended without a connection.
    pub failed_handshakes: u64,
    /// Connections without a request that were closed to make room.
    pub closed_idle: u64,
    /// Connections that ended by a panic, which is a bug.
    pub panics: u64,
    /// Times that the process had no descriptor, or no memory, for a connection.
    pub accept_failures: u64,
    /// Why the thread ended, if it did.
    pub ended: Option<String>,
    /// Requests of the fast lane for the access log, and how many there was no room for.
    pub logged: Vec<LogEntry>,
    pub unlogged: u64,
    /// Requests that Python counts again.
    pub recounts: Vec<Recount>,
    /// Requests that Python counts with other gateways, and those that ended of them.
    pub calls: Vec<Call>,
    pub settlements: Vec<Settlement>,
    /// Streams of Python's that wait for it.
    pub paused_relays: Vec<u64>,
}

/// The side of the queue that both threads hold.
#[derive(Debug)]
pub struct HandOver {
    news: Mutex<(News, Vec<OwnedSemaphorePermit>)>,
    room: Arc<Semaphore>,
    event: OwnedFd,
    is_woken: AtomicBool,
    wakes_soon: AtomicBool,
    wakes_later: AtomicBool,
}

impl HandOver {
    pub fn new() -> std::io::Result<HandOver> {
        Ok(HandOver {
            news: Mutex::default(),
            room: Arc::new(Semaphore::new(MOST_UNTAKEN)),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_woken: AtomicBool::new(false),
            wakes_soon: AtomicBool::new(false),
            wakes_later: AtomicBool::new(false),
        })
    }

    /// Readable when there is news.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Waits until one more connection may wait for Python; it may as long as the result is there.
    pub async fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().acquire_owned().await.ok()
    }

    pub fn hand(&self, connection: Handed, room: OwnedSemaphorePermit) {
        let mut news = locked(&self.news);
        news.0.handed.push(connection);
        news.1.push(room);
        drop(news);
        self.wake();
    }

    /// Has Python count a request with other gateways: at once, or with others where answers are awaited already.
    pub fn call(self: &Arc<Self>, call: Call, is_first: bool) {
        locked(&self.news).0.calls.push(call);
        if is_first {
            self.wake();
        } else {
            self.wake_soon();
        }
    }

    /// A request ended that was counted so. Python takes it with the next calls, or within moments.
    pub fn settle(self: &Arc<Self>, settlement: Settlement) {
        locked(&self.news).0.settlements.push(settlement);
        self.wake_after(LATER, |this| &this.wakes_later, |news| !news.settlements.is_empty());
    }

    fn wake_soon(self: &Arc<Self>) {
        self.wake_after(SOON, |this| &this.wakes_soon, |_| true);
    }

    /// Wakes Python after a time, once for all that comes until then, where it has something then; outside of the thread
    /// at once.
    fn wake_after(self: &Arc<Self>, time: Duration, flag: fn(&HandOver) -> &AtomicBool, has_some: fn(&News) -> bool) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return self.wake() };
        if !flag(self).swap(true, Ordering::SeqCst) {
            let this = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(time).await;
                flag(&this).store(false, Ordering::SeqCst);
                let wakes = has_some(&locked(&this.news).0);
                if wakes {
                    this.wake();
                }
            });
        }
    }

    /// A stream waits for Python.
    pub fn relay_paused(&self, id: u64) {
        locked(&self.news).0.paused_relays.push(id);
        self.wake();
    }

    /// Changes the counts.
    pub fn count(&self, change: impl FnOnce(&mut News)) {
        change(&mut locked(&self.news).0);
        self.wake();
    }

    /// Adds an entry for the access log, or for spans. Python looks for it from time to time, and is woken when many wait.
    pub fn log(&self, entry: LogEntry) {
        let mut news = locked(&self.news);
        if news.0.logged.len() >= MAX_LOGGED {
            news.0.unlogged += 1;
            return;
        }
        news.0.logged.push(entry);
        let wakes = news.0.logged.len() >= MAX_LOGGED / 4;
        drop(news);
        if wakes {
            self.wake();
        }
    }

    /// Adds a request to count again, unless `most` wait. Python is woken before.
    pub fn recount(&self, one: Recount, most: usize) {
        let mut news = locked(&self.news);
        if news.0.recounts.len() >= most {
            return;
        }
        news.0.recounts.push(one);
        let wakes = news.0.recounts.len() > (most / 2).min(MAX_QUIET_RECOUNTS);
        drop(news);
        if wakes {
            self.wake();
        }
    }

    /// All news since the last call. It is Python's from here on, and there is room for as much again.
    pub fn take(&self) -> News {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.event, &mut count); // empty where nothing was written
                                                           // Before the news is taken: what comes later wakes again.
        self.is_woken.store(false, Ordering::SeqCst);
        // A thread that ended wakes no one any more.
        self.wakes_soon.store(false, Ordering::SeqCst);
        self.wakes_later.store(false, Ordering::SeqCst);
        let (news, room) = std::mem::take(&mut *locked(&self.news));
        drop(room);
        news
    }

    fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            // It cannot be full: it is written once for each time that it is read.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// The value of a mutex. After a panic too: each change of these values is whole.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_wakes_once_until_it_is_taken() {
        let queue = HandOver::new().unwrap();
        let mut count = [0u8; 8];
        for _ in 0..3 {
            queue.count(|news| news.panics += 1);
        }
        assert_eq!(rustix::io::read(queue.event(), &mut count).map(|_| u64::from_ne_bytes(count)), Ok(1));
        queue.is_woken.store(false, Ordering::SeqCst);
        queue.count(|news| news.closed_idle += 1);
        let news = queue.take();
        assert_eq!((news.panics, news.closed_idle), (3, 1));
        assert!(rustix::io::read(queue.event(), &mut count).is_err(), "nothing is left to read");
        queue.count(|news| news.refused_total += 1);
        assert!(rustix::io::read(queue.event(), &mut count).is_ok(), "the next one wakes again");
    }

    #[test]
    fn a_place_that_is_dropped_is_free() {
        let places = Arc::new(Mutex::new(Places::new(2, 100, 1)));
        let place = Place::take(&places, "a".to_owned()).unwrap();
        assert_eq!(Place::take(&places, "a".to_owned()).unwrap_err(), Refusal::Share);
        drop(place);
        assert_eq!(locked(&places).used(), 0);
    }
}
