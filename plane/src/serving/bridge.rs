//! A TLS connection that Python serves: its session stays here, and Python has the plain bytes by a pair of sockets of the
//! kernel. So each side waits for the other as two ends of a connection do, and at most one record waits in between.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use socket2::SockRef;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{sleep_until, Instant};

use super::streams::ClientStream;
use crate::handover::locked;

/// What is read of either side at once: a record of TLS.
const PIECE_BYTES: usize = 16 << 10;
/// As `limits/transports.py` has it.
const SOCKET_BUFFER_BYTES: usize = 128 << 10;
/// Pieces of one connection before others have their turn.
const MAX_PIECES: usize = 8;

/// What both threads hold of a bridge.
#[derive(Debug)]
pub struct Bridge {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// The client's, in DER, which was verified.
    pub certificate: Option<Vec<u8>>,
    pub server_name: Option<String>,
    /// Python gave up: what the client has is no whole message.
    is_cut: AtomicBool,
    /// Python's end, for the bytes that it has not read, where it gives the connection back.
    returned: Mutex<Option<Pair>>,
    changed: Notify,
}

impl Bridge {
    /// # Errors
    /// What the system has against a pair of sockets. Returns this side's end, and Python's.
    pub fn open(client: &ClientStream) -> io::Result<(Arc<Bridge>, UnixStream, OwnedFd)> {
        let (here, there) = Pair::pair()?;
        let socket = SockRef::from(client.tcp());
        socket.set_keepalive(true)?; // as Python does with sockets that it has
        socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        here.set_nonblocking(true)?;
        there.set_nonblocking(true)?;
        let (certificate, server_name) = client.peer();
        let bridge = Bridge {
            peer: client.tcp().peer_addr()?,
            local: client.tcp().local_addr()?,
            certificate,
            server_name,
            is_cut: AtomicBool::new(false),
            returned: Mutex::default(),
            changed: Notify::new(),
        };
        Ok((Arc::new(bridge), UnixStream::from_std(here)?, there.into()))
    }

    /// Python closes its end next, and the client must not take what it has for all.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.changed.notify_one(); // this side may wait for a client that reads nothing
    }

    /// Python closes its end next, and reads no more: the connection waits for a request. `end`: of it.
    pub fn give_back(&self, end: OwnedFd) {
        *locked(&self.returned) = Some(Pair::from(end));
        self.changed.notify_one();
    }

    /// Carries bytes until the connection ends, or is given back. Returns what came of the next request then.
    /// `patience`: for a client that reads nothing of what Python left; it ends after one to two of them.
    pub(crate) async fn run(&self, client: &ClientStream, python: UnixStream, patience: Duration) -> Option<Vec<u8>> {
        let mut carried = Carried::default();
        let mut due = Instant::now() + patience;
        let mut pieces = 0;
        loop {
            match carried.step(client, &python) {
                Ok(true) => {
                    due = Instant::now() + patience;
                    pieces += 1;
                    if pieces % MAX_PIECES == 0 {
                        yield_now().await;
                    }
                }
                Ok(false) => {}
                Err(_) => return None, // the client is gone, or Python is
            }
            if carried.python_ended && client.try_flush().is_ok() {
                if carried.is_returning {
                    return Some(carried.to_python);
                }
                if !self.is_cut.load(Ordering::SeqCst) {
                    client.close();
                }
                return None;
            }
            if (carried.python_ended || carried.waits_for_client) && self.is_cut.load(Ordering::SeqCst) {
                return None;
            }
            tokio::select! {
                biased;
                () = self.changed.notified(), if !carried.is_returning => self.take_back(&mut carried),
                _ = client.writable(), if carried.waits_for_client || carried.python_ended => {}
                _ = python.writable(), if carried.waits_for_python => {}
                _ = python.readable(), if !carried.waits_for_client && !carried.python_ended => {}
                _ = client.readable(), if carried.may_read_client() => {}
                () = sleep_until(due), if carried.waits_for_client || carried.python_ended => {
                    if has_left(&python) {
                        return None;
                    }
                    due = Instant::now() + patience;
                }
            }
        }
    }

    /// What Python has not read is the next request's, and comes before what this side has for it.
    fn take_back(&self, carried: &mut Carried) {
        let Some(end) = locked(&self.returned).take() else { return };
        carried.is_returning = true;
        carried.waits_for_python = false;
        let mut unread = Vec::new();
        let _ = io::Read::read_to_end(&mut &end, &mut unread); // up to WouldBlock, which keeps what came
        unread.append(&mut carried.to_python);
        carried.to_python = unread;
    }
}

/// What is on its way.
#[derive(Debug, Default)]
struct Carried {
    to_python: Vec<u8>,
    to_client: Vec<u8>,
    waits_for_client: bool,
    waits_for_python: bool,
    client_ended: bool,
    python_ended: bool,
    is_returning: bool,
}

impl Carried {
    fn may_read_client(&self) -> bool {
        self.to_python.is_empty() && !self.client_ended && !self.python_ended && !self.is_returning
    }

    /// Carries what can be carried at once, one piece each way. Whether something moved.
    fn step(&mut self, client: &ClientStream, python: &UnixStream) -> io::Result<bool> {
        Ok(self.carry_to_client(client, python)? | self.carry_to_python(client, python)?)
    }

    fn carry_to_client(&mut self, client: &ClientStream, python: &UnixStream) -> io::Result<bool> {
        let mut moved = false;
        if let Some(()) = at_once(client.try_flush())? {
            self.waits_for_client = false;
        } else {
            self.waits_for_client = true;
            return Ok(false);
        }
        if self.to_client.is_empty() && !self.python_ended {
            self.to_client.reserve(PIECE_BYTES);
            match at_once(python.try_read_buf(&mut self.to_client))? {
                Some(0) => self.python_ended = true,
                Some(_) => moved = true,
                None => {}
            }
        }
        if !self.to_client.is_empty() {
            match at_once(client.try_write(&self.to_client))? {
                Some(size) => drop(self.to_client.drain(..size)),
                None => self.waits_for_client = true,
            }
            self.waits_for_client |= !self.to_client.is_empty() || at_once(client.try_flush())?.is_none();
        }
        if self.to_client.is_empty() {
            self.to_client = Vec::new(); // it holds nothing while nothing comes
        }
        Ok(moved)
    }

    fn carry_to_python(&mut self, client: &ClientStream, python: &UnixStream) -> io::Result<bool> {
        let mut moved = false;
        if self.may_read_client() {
            match at_once(client.try_read_buf(&mut self.to_python))? {
                Some(0) => {
                    self.client_ended = true;
                    end_of_client(python);
                }
                Some(_) => moved = true,
                None => {}
            }
        }
        if !self.is_returning && !self.to_python.is_empty() {
            if let Some(size) = at_once(python.try_write(&self.to_python))? {
                drop(self.to_python.drain(..size));
            }
            self.waits_for_python = !self.to_python.is_empty();
            if self.to_python.is_empty() {
                self.to_python = Vec::new();
            }
        }
        Ok(moved)
    }
}

/// Python reads the end of the data, as it would of the client's socket.
fn end_of_client(python: &UnixStream) {
    let _ = rustix::net::shutdown(python, rustix::net::Shutdown::Write);
}

/// Whether Python closed its end. What it wrote before that may still be there.
fn has_left(python: &UnixStream) -> bool {
    let mut polled = [PollFd::new(python, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn at_once<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
