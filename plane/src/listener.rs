//! The public port: accepts, counts and bounds connections, and hands each one over with its first bytes. Mirrors
//! `serving/listener.py`.
//!
//! Nothing of HTTP is decided here. A head that is not whole with the first bytes is Python's too, with its time limit,
//! so that a connection costs no buffer as long as its client is silent.

use std::io;
use std::net::{SocketAddr, TcpListener as Socket};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, sleep_until, Instant};

use crate::forwarding::relay;
use crate::handover::{locked, Encryption, HandOver, Handed, Place, Returns, FIRST_BYTES};
use crate::lane::Lane;
use crate::limits::connections::address_owner;
use crate::limits::places::{Places, Refusal};
use crate::serving::api;
use crate::serving::streams::ClientStream;
use crate::serving::tls::{PortTls, Shaken};
use crate::upstream::pool::IDLE;

const BACKLOG: i32 = 1024;
/// After the process had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// What a port is opened with.
#[derive(Debug)]
pub struct Settings {
    pub max_connections: u64,
    /// Of them, what one address may hold while it is alone, in percent.
    pub percentage: u64,
    /// What one address may hold in any case; 0: no such bound.
    pub max_per_address: u64,
    /// Time that a connection may stay open without its first byte.
    pub longest_silence: Duration,
    /// Time for a TLS handshake; None: the port has no TLS.
    pub longest_handshake: Option<Duration>,
    /// Whole responses for connections that are refused: all places are taken, or all of the address.
    pub refusal_total: Vec<u8>,
    pub refusal_share: Vec<u8>,
}

/// What Python wants of the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    is_open: bool,
    stops: bool,
    pub(crate) longest_silence: Duration,
    /// Silent connections that were accepted before it are closed, to make room.
    pub(crate) closed_before: Option<Instant>,
}

/// What both threads hold.
#[derive(Debug)]
pub(crate) struct Shared {
    settings: Settings,
    /// Serves plain requests; None: all are Python's.
    lane: Option<Arc<Lane>>,
    tls: Option<PortTls>,
    places: Arc<Mutex<Places>>,
    handover: Arc<HandOver>,
    orders: watch::Sender<Orders>,
    silent: AtomicU64,
    /// The thread ended by an error, and may start again.
    has_ended: AtomicBool,
}

/// A port, and the thread that serves it.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    /// Kept for a thread that starts again, until the port closes.
    sockets: Mutex<Vec<Socket>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    /// `sockets`: bound, and of this listener from here on. Raises what the system has against an eventfd.
    pub fn new(sockets: Vec<Socket>, settings: Settings, lane: Option<Arc<Lane>>) -> io::Result<Listener> {
        let places = Places::new(settings.max_connections, settings.percentage, settings.max_per_address);
        let longest_silence = settings.longest_silence;
        let orders = Orders { is_open: true, stops: false, longest_silence, closed_before: None };
        let shared = Shared {
            tls: settings.longest_handshake.map(PortTls::new),
            settings,
            lane,
            places: Arc::new(Mutex::new(places)),
            handover: Arc::new(HandOver::new()?),
            orders: watch::Sender::new(orders),
            silent: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
        };
        Ok(Listener { shared: Arc::new(shared), sockets: Mutex::new(sockets), thread: Mutex::new(None) })
    }

    /// Starts the thread; without effect while it runs, and once `drain` or `stop` was called.
    pub fn start(&self) -> io::Result<()> {
        let mut thread = locked(&self.thread);
        let runs = thread.is_some() && !self.shared.has_ended.load(Ordering::SeqCst);
        if runs || !self.shared.orders.borrow().is_open {
            return Ok(());
        }
        if let Some(ended) = thread.take() {
            let _ = ended.join(); // within moments: it has nothing left to do
        }
        let mut sockets = Vec::new();
        for socket in locked(&self.sockets).iter() {
            SockRef::from(socket).listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            sockets.push(socket.try_clone()?);
        }
        self.shared.has_ended.store(false, Ordering::SeqCst);
        let shared = self.shared.clone();
        let body = move || {
            let end = catch_unwind(AssertUnwindSafe(|| serve(&shared, sockets)));
            let why = match end {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_owned(),
            };
            shared.has_ended.store(true, Ordering::SeqCst);
            shared.handover.count(|news| news.ended = Some(why));
        };
        *thread = Some(std::thread::Builder::new().name("slipway-plane".to_owned()).spawn(body)?);
        Ok(())
    }

    pub fn handover(&self) -> &HandOver {
        &self.shared.handover
    }

    /// TLS of the port; None: it has none.
    pub fn tls(&self) -> Option<&PortTls> {
        self.shared.tls.as_ref()
    }

    /// Connections that have a place, here and in Python.
    pub fn connections(&self) -> u64 {
        locked(&self.shared.places).used()
    }

    /// Connections of which no byte has come.
    pub fn silent(&self) -> u64 {
        self.shared.silent.load(Ordering::Relaxed)
    }

    /// Closes connections that have been silent for `idle`.
    pub fn close_silent(&self, idle: Duration) {
        let before = Instant::now().checked_sub(idle);
        self.shared.orders.send_modify(|orders| orders.closed_before = before.max(orders.closed_before));
    }

    /// Closes the port, after all connections that the kernel has completed were accepted. From here on a connection
    /// may be silent for `longest_silence`.
    pub fn drain(&self, longest_silence: Duration) {
        self.shared.orders.send_modify(|orders| {
            orders.is_open = false;
            orders.longest_silence = longest_silence;
        });
        locked(&self.sockets).clear(); // the thread's own follow when it has accepted the rest
    }

    /// Ends the thread and waits for its end: silent connections are closed. Must not be called under the GIL.
    pub fn stop(&self) {
        self.shared.orders.send_modify(|orders| (orders.is_open, orders.stops) = (false, true));
        locked(&self.sockets).clear();
        if let Some(thread) = locked(&self.thread).take() {
            let _ = thread.join(); // its panics are caught, and counted
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.orders.send_modify(|orders| (orders.is_open, orders.stops) = (false, true));
    }
}

impl Shared {
    pub(crate) fn handover(&self) -> &Arc<HandOver> {
        &self.handover
    }

    pub(crate) fn orders(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }
}

/// The thread: returns when it is to stop, or an error that ends it.
fn serve(shared: &Arc<Shared>, sockets: Vec<Socket>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _relays = Relays(shared);
    serve_returned(shared, &runtime);
    runtime.block_on(async {
        let mut ports = JoinSet::new();
        for socket in sockets {
            ports.spawn(accept(shared.clone(), TcpListener::from_std(socket)?));
        }
        let mut orders = shared.orders.subscribe();
        let mut sweeps = interval(IDLE);
        loop {
            tokio::select! {
                _ = orders.wait_for(|orders| orders.stops) => return Ok(()),
                _ = sweeps.tick() => if let Some(lane) = &shared.lane { lane.pool.close_unused() },
                () = returned(shared) => serve_returned(shared, &runtime),
                Some(ended) = ports.join_next() => ended.map_err(io::Error::other)??,
            }
        }
    })
}

/// Returns when Python has given connections back, or streams.
async fn returned(shared: &Shared) {
    match &shared.lane {
        Some(lane) => lane.has_returned.notified().await,
        None => std::future::pending().await,
    }
}

/// The thread takes streams of Python's. Dropped, it gives those back that nothing runs any more.
struct Relays<'a>(&'a Arc<Shared>);

impl Drop for Relays<'_> {
    fn drop(&mut self) {
        for one in self.0.lane.iter().flat_map(|lane| lane.close_relays()) {
            drop(relay::Lost::of(self.0, &one));
        }
    }
}

fn serve_returned(shared: &Arc<Shared>, runtime: &Runtime) {
    let Some(lane) = &shared.lane else { return };
    for (stream, place) in lane.take_returned() {
        if let Ok(stream) = TcpStream::from_std(stream) {
            let stream = ClientStream::Plain(stream);
            runtime.spawn(api::serve(Silent::new(shared.clone()), lane.clone(), stream, place));
        }
    }
    for one in lane.take_relays() {
        runtime.spawn(relay::run(shared.clone(), one));
    }
}

/// Accepts until the port is to close. Returns an error with which no further connection can come.
async fn accept(shared: Arc<Shared>, listener: TcpListener) -> io::Result<()> {
    let mut orders = shared.orders.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = orders.wait_for(|orders| !orders.is_open) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => admit(&shared, stream, address),
            Err(error) => match after(&error) {
                After::Next => {}
                After::Pause => {
                    shared.handover.count(|news| news.accept_failures += 1);
                    sleep(ACCEPT_PAUSE).await;
                }
                After::End => return Err(error),
            },
        }
    }
    // These clients have their connection: closing the port now would reset them.
    let listener = listener.into_std()?;
    while let Ok((stream, address)) = listener.accept() {
        stream.set_nonblocking(true)?;
        admit(&shared, TcpStream::from_std(stream)?, address);
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum After {
    Next,
    Pause,
    End,
}

/// What follows an error of accept(2).
fn after(error: &io::Error) -> After {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => After::Pause,
        Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP | Errno::FAULT) => After::End,
        _ => After::Next, // of that connection
    }
}

fn admit(shared: &Arc<Shared>, stream: TcpStream, address: SocketAddr) {
    match Place::take(&shared.places, address_owner(address.ip())) {
        Ok(place) => {
            let silent = Silent::new(shared.clone());
            match &shared.lane {
                Some(lane) => {
                    // A response is written at once, and bounded by the kernel's buffer.
                    let _ = stream.set_nodelay(true);
                    if shared.tls.is_some() {
                        tokio::spawn(await_handshake(silent, lane.clone(), stream, place));
                    } else {
                        tokio::spawn(api::serve(silent, lane.clone(), ClientStream::Plain(stream), place));
                    }
                }
                None => {
                    tokio::spawn(await_first_bytes(silent, stream, place));
                }
            }
        }
        Err(refusal) => {
            let response = match refusal {
                Refusal::Total => &shared.settings.refusal_total,
                Refusal::Share => &shared.settings.refusal_share,
            };
            if shared.tls.is_none() {
                // An empty buffer takes it whole, or the client is gone. With TLS it would need the handshake.
                let _ = stream.try_write(response);
            }
            shared.handover.count(|news| match refusal {
                Refusal::Total => news.refused_total += 1,
                Refusal::Share => news.refused_share += 1,
            });
        }
    }
}

/// Counts a connection as silent as long as it is here.
pub(crate) struct Silent(Arc<Shared>);

/// Counts a panic of a connection's task, which alone ends.
pub(crate) struct Panics(pub(crate) Arc<Shared>);

impl Drop for Panics {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.handover.count(|news| news.panics += 1);
        }
    }
}

impl Silent {
    fn new(shared: Arc<Shared>) -> Silent {
        shared.silent.fetch_add(1, Ordering::Relaxed);
        Silent(shared)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.0.silent.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for a connection's first bytes and hands them over with it; closes it where none come in time.
async fn await_first_bytes(silent: Silent, stream: TcpStream, place: Place) {
    let shared = &silent.0;
    let _panics = Panics(shared.clone());
    let accepted = Instant::now();
    let mut orders = shared.orders.subscribe();
    loop {
        let Orders { longest_silence, closed_before, .. } = *orders.borrow_and_update();
        if closed_before.is_some_and(|before| accepted <= before) {
            shared.handover.count(|news| news.closed_idle += 1);
            return;
        }
        tokio::select! {
            biased;
            ready = stream.readable() => if ready.is_err() { return },
            _ = sleep_until(accepted + longest_silence) => return,
            _ = orders.changed() => continue,
        }
        if shared.tls.is_some() {
            return to_python(shared, stream, Vec::new(), place, Encryption::Ahead).await;
        }
        let Some(room) = shared.handover.room().await else { return };
        match read_first(&stream) {
            Ok(first_bytes) if first_bytes.is_empty() => return, // the client left
            Ok(first_bytes) => {
                drop(room);
                return to_python(shared, stream, first_bytes, place, Encryption::None).await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        }
    }
}

/// Hands over a connection that Python serves from its beginning to its end.
async fn to_python(shared: &Shared, stream: TcpStream, first_bytes: Vec<u8>, place: Place, encryption: Encryption) {
    let Some(room) = shared.handover.room().await else { return };
    let Ok(stream) = stream.into_std() else { return };
    let (owner, socket) = (place.owner().to_owned(), stream.into());
    let (place, begun, returns) = (Some(place), None, Returns::Never);
    shared.handover.hand(Handed { socket, first_bytes, owner, place, encryption, begun, returns }, room);
}

/// Does the TLS handshake of a connection, and serves it.
async fn await_handshake(silent: Silent, lane: Arc<Lane>, stream: TcpStream, place: Place) {
    let shared = silent.0.clone();
    let _panics = Panics(shared.clone());
    let Some(tls) = &shared.tls else { return };
    let shaken = tokio::select! {
        shaken = tls.shake(&stream, place.owner()) => shaken,
        is_counted = overdue(&shared, tls.longest_handshake) => {
            if is_counted {
                return;
            }
            Shaken::Failed
        }
    };
    match shaken {
        Shaken::Session(session) => api::serve(silent, lane, ClientStream::tls(stream, *session), place).await,
        Shaken::Python => {
            locked(&lane.hand_overs).count("", "handshake");
            to_python(&shared, stream, Vec::new(), place, Encryption::Ahead).await;
        }
        Shaken::Failed => shared.handover.count(|news| news.failed_handshakes += 1),
    }
}

/// Waits as long as a connection may take from now on. Whether it is counted: it was closed to make room.
async fn overdue(shared: &Shared, longest: Duration) -> bool {
    let accepted = Instant::now();
    let mut orders = shared.orders.subscribe();
    loop {
        let Orders { longest_silence, closed_before, .. } = *orders.borrow_and_update();
        if closed_before.is_some_and(|before| accepted <= before) {
            shared.handover.count(|news| news.closed_idle += 1);
            return true;
        }
        tokio::select! {
            () = sleep_until(accepted + longest.min(longest_silence)) => return false,
            _ = orders.changed() => {}
        }
    }
}

fn read_first(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(FIRST_BYTES);
    stream.try_read_buf(&mut bytes)?;
    bytes.shrink_to_fit();
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;

    fn listener(max_connections: u64) -> (Listener, SocketAddr) {
        let socket = Socket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let settings = Settings {
            max_connections,
            percentage: 100,
            max_per_address: 0,
            longest_silence: Duration::from_secs(60),
            longest_handshake: None,
            refusal_total: b"full".to_vec(),
            refusal_share: b"share".to_vec(),
        };
        let listener = Listener::new(vec![socket], settings, None).unwrap();
        listener.start().unwrap();
        (listener, address)
    }

    fn until(mut holds: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(std::time::Instant::now() < end, "it does not hold in time");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn received(mut client: Client) -> Vec<u8> {
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut bytes = Vec::new();
        let _ = client.read_to_end(&mut bytes);
        bytes
    }

    #[test]
    fn the_first_bytes_come_with_their_socket_and_keep_its_place() {
        let (listener, address) = listener(2);
        let mut client = Client::connect(address).unwrap();
        until(|| listener.silent() == 1);
        client.write_all(b"GET /").unwrap();
        let mut handed = Vec::new();
        until(|| {
            handed.append(&mut listener.handover().take().handed);
            handed.len() == 1
        });
        let handed = handed.pop().unwrap();
        assert_eq!((handed.first_bytes.as_slice(), handed.owner.as_str()), (&b"GET /"[..], "127.0.0.1"));
        until(|| listener.silent() == 0);
        assert_eq!(listener.connections(), 1);
        let mut socket = Client::from(handed.socket);
        socket.set_nonblocking(false).unwrap();
        socket.write_all(b"here").unwrap();
        drop((socket, handed.place));
        assert_eq!((received(client).as_slice(), listener.connections()), (&b"here"[..], 0));
        listener.stop();
    }

    #[test]
    fn beyond_all_places_a_connection_gets_the_refusal() {
        let (listener, address) = listener(1);
        let _first = Client::connect(address).unwrap();
        until(|| listener.silent() == 1);
        assert_eq!(received(Client::connect(address).unwrap()), b"full");
        assert_eq!(listener.handover().take().refused_total, 1);
        listener.close_silent(Duration::ZERO);
        until(|| listener.connections() == 0);
        assert_eq!(listener.handover().take().closed_idle, 1);
    }

    #[test]
    fn no_more_than_the_bound_wait_for_python() {
        let most = crate::handover::MOST_UNTAKEN;
        let (listener, address) = listener(1000);
        let mut clients: Vec<_> = (0..most + 20).map(|_| Client::connect(address).unwrap()).collect();
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        let mut handed = Vec::new();
        until(|| listener.silent() == 20);
        handed.append(&mut listener.handover().take().handed);
        assert_eq!(handed.len(), most);
        until(|| {
            handed.append(&mut listener.handover().take().handed);
            handed.len() == most + 20
        });
    }

    #[test]
    fn a_drain_closes_the_port_and_silent_connections_but_not_one_that_sends() {
        let (listener, address) = listener(10);
        let (silent, mut sends) = (Client::connect(address).unwrap(), Client::connect(address).unwrap());
        listener.drain(Duration::from_millis(400));
        sends.write_all(b"GET /").unwrap();
        until(|| !listener.handover().take().handed.is_empty());
        assert_eq!(received(silent), b"");
        until(|| listener.connections() == 0);
        until(|| Client::connect(address).is_err());
    }

    #[test]
    fn a_port_that_cannot_accept_ends_the_thread_and_says_so_and_it_can_start_again() {
        let (listener, address) = listener(10);
        let _silent = Client::connect(address).unwrap();
        until(|| listener.silent() == 1);
        SockRef::from(&locked(&listener.sockets)[0]).shutdown(std::net::Shutdown::Read).unwrap();
        let mut why = None;
        until(|| {
            why = listener.handover().take().ended;
            why.is_some()
        });
        assert!(why.unwrap().contains("Invalid argument"));
        assert_eq!((listener.connections(), listener.silent()), (0, 0), "its connections are closed");
        listener.start().unwrap();
        // The kernel chose the port, and chooses another one; one that was bound by its number stays.
        let address = locked(&listener.sockets)[0].local_addr().unwrap();
        let _client = Client::connect(address).unwrap();
        until(|| listener.silent() == 1);
        listener.stop();
    }

    #[test]
    fn a_panic_ends_one_connection_and_is_counted() {
        let (listener, address) = listener(10);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let silent = Silent::new(listener.shared.clone());
        let place = Place::take(&listener.shared.places, "a".to_owned()).unwrap();
        let task = runtime.spawn(async move {
            let _held = (Panics(silent.shared().clone()), silent, place);
            panic!("on purpose");
        });
        assert!(runtime.block_on(task).is_err());
        assert_eq!((listener.handover().take().panics, listener.connections()), (1, 0));
        let _ = Client::connect(address).unwrap();
    }

    #[test]
    fn an_error_of_accept_says_what_follows() {
        let kind = |errno: Errno| after(&errno.into());
        assert_eq!(
            (kind(Errno::MFILE), kind(Errno::CONNABORTED), kind(Errno::INVAL)),
            (After::Pause, After::Next, After::End)
        );
    }
}
