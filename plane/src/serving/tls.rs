//! TLS of the port: its certificate, which handshakes are done here, and what bounds them. Mirrors `serving/tls.py`.
//!
//! The first message of a client is looked at while the kernel still has it. What rustls does not take, as old ciphers or
//! other protocols by ALPN, and what is no TLS at all, goes to Python with its socket, from which nothing was read. So
//! Python serves what it has always served, and there is one opinion on what is refused before a handshake begins.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::{recv, RecvFlags};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{Acceptor, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

use super::streams::{flush, receive};
use crate::handover::locked;

/// As ALPN names it. A client that offers it not is Python's, which goes on without.
const PROTOCOL: &[u8] = b"http/1.1";
const HANDSHAKE: u8 = 0x16;
const RECORD_HEAD_BYTES: usize = 5;
/// Of a client's first message. Those of browsers have 2 KiB.
const MAX_HELLO_BYTES: usize = 16 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_HELLO_BYTES]);
}

/// In PEM.
#[derive(Debug)]
pub struct Files {
    pub certificate: Vec<u8>,
    pub private_key: Vec<u8>,
    /// Empty: clients need no certificate.
    pub client_ca: Vec<u8>,
    /// Whether clients need one where there is a `client_ca`.
    pub requires_client: bool,
    /// TLS 1.3 alone.
    pub is_newest: bool,
}

impl Files {
    /// # Errors
    /// Why Python does all handshakes with these files.
    pub fn config(&self) -> Result<Arc<ServerConfig>, String> {
        let wrong = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate).collect();
        let chain = chain.map_err(|error| wrong("certificate", &error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.private_key).map_err(|error| wrong("private key", &error))?;
        let provider = Arc::new(ring::default_provider());
        let versions = if self.is_newest { &[&TLS13][..] } else { &[&TLS13, &TLS12] };
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions);
        let builder = builder.map_err(|error| wrong("versions", &error))?;
        let builder = if self.client_ca.is_empty() {
            builder.with_no_client_auth()
        } else {
            let mut roots = RootCertStore::empty();
            for root in CertificateDer::pem_slice_iter(&self.client_ca) {
                let root = root.map_err(|error| wrong("client CA", &error))?;
                roots.add(root).map_err(|error| wrong("client CA", &error))?;
            }
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let clients = if self.requires_client { clients } else { clients.allow_unauthenticated() };
            builder.with_client_cert_verifier(clients.build().map_err(|error| wrong("client CA", &error))?)
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| wrong("certificate", &error))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // A session costs its client memory, and not this side. Another certificate or authority has other keys of tickets.
        config.ticketer = ring::Ticketer::new().map_err(|error| wrong("tickets", &error))?;
        Ok(Arc::new(config))
    }
}

/// TLS of one port.
#[derive(Debug)]
pub struct PortTls {
    /// None: Python does all handshakes.
    config: Mutex<Option<Arc<ServerConfig>>>,
    /// From the connection's first moment to the end of its handshake.
    pub longest_handshake: Duration,
    turns: Turns,
}

/// What became of a connection.
#[derive(Debug)]
pub enum Shaken {
    Session(Box<ServerConnection>),
    /// Nothing was read.
    Python,
    Failed,
}

impl PortTls {
    pub fn new(longest_handshake: Duration) -> Self {
        PortTls { config: Mutex::new(None), longest_handshake, turns: Turns::new() }
    }

    /// Of the handshakes that begin from now on.
    pub fn replace(&self, config: Option<Arc<ServerConfig>>) {
        let former = std::mem::replace(&mut *locked(&self.config), config);
        drop(former); // not under the lock
    }

    /// Does the handshake of a connection, which may be dropped at any time. `owner`: of its address.
    pub async fn shake(&self, tcp: &TcpStream, owner: &str) -> Shaken {
        let Ok(Some(hello)) = hello(tcp).await else { return Shaken::Failed };
        let Some(config) = locked(&self.config).clone() else { return Shaken::Python };
        let Some(mut session) = self.turns.run(owner, || answer(config, &hello)).await else {
            return Shaken::Python;
        };
        match self.finish(tcp, owner, &mut session, hello).await {
            Ok(()) => Shaken::Session(session),
            Err(_) => Shaken::Failed,
        }
    }

    async fn finish(
        &self,
        tcp: &TcpStream,
        owner: &str,
        session: &mut ServerConnection,
        mut hello: Vec<u8>,
    ) -> io::Result<()> {
        let size = tcp.try_read(&mut hello)?; // what was looked at
        if size != hello.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        loop {
            while let Err(error) = flush(tcp, session) {
                if error.kind() != io::ErrorKind::WouldBlock {
                    return Err(error);
                }
                tcp.writable().await?;
            }
            if !session.is_handshaking() {
                return Ok(());
            }
            tcp.readable().await?;
            match self.turns.run(owner, || receive(tcp, session)).await {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }
}

/// The answer to a client's first message, which is given to it alone: what the socket has stays there. None: it is Python's.
fn answer(config: Arc<ServerConfig>, hello: &[u8]) -> Option<Box<ServerConnection>> {
    let (mut acceptor, mut rest) = (Acceptor::default(), hello);
    while !rest.is_empty() {
        acceptor.read_tls(&mut rest).ok()?;
    }
    let accepted = acceptor.accept().ok()??;
    accepted.into_connection(config).ok().map(Box::new)
}

/// Waits for a client's first message and returns it; the kernel has it still. Less of it: it is no TLS, or too long.
/// None: the client left before.
async fn hello(tcp: &TcpStream) -> io::Result<Option<Vec<u8>>> {
    loop {
        let ready = tcp.ready(Interest::READABLE).await?;
        match tcp.try_io(Interest::READABLE, || peek(tcp)) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if ready.is_read_closed() => return Ok(None),
            Err(_) => {}
            seen => return seen,
        }
    }
}

/// Raises WouldBlock: more has to come. Each arrival makes the socket readable again, because tokio follows edges.
fn peek(tcp: &TcpStream) -> io::Result<Option<Vec<u8>>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let (size, _) = recv(tcp, scratch.as_mut_slice(), RecvFlags::PEEK).map_err(io::Error::from)?;
        let seen = scratch.get(..size).unwrap_or_default();
        match (seen.first(), wanted(seen)) {
            (None, _) => Ok(None),
            (Some(&HANDSHAKE), more) if more > seen.len() && more <= MAX_HELLO_BYTES => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            _ => Ok(Some(seen.to_vec())),
        }
    })
}

/// How many bytes a client's first message has, as far as its beginning says that.
fn wanted(seen: &[u8]) -> usize {
    let (mut end, mut message_bytes, mut left) = (0, None, 0);
    loop {
        let Some(head) = seen.get(end..end + RECORD_HEAD_BYTES) else { return end + RECORD_HEAD_BYTES };
        let size = usize::from(head[3]) << 8 | usize::from(head[4]);
        let begin = end + RECORD_HEAD_BYTES;
        end = begin + size;
        let Some(record) = seen.get(begin..end) else { return end };
        if message_bytes.is_none() {
            // A message's type, and its length in three bytes; what comes in shorter records is none of any client.
            let Some(&[_, high, middle, low]) = record.get(..4) else { return end };
            left = 4 + (usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low));
            message_bytes = Some(left);
        }
        left = left.saturating_sub(size);
        if left == 0 || size == 0 || head[0] != HANDSHAKE {
            return end;
        }
    }
}

/// One handshake computes at a time, between two of them the thread serves what else is ready, and of each owner one
/// waits for its turn: many handshakes of one client delay those of others by one.
#[derive(Debug)]
struct Turns {
    one: Semaphore,
    owners: Mutex<HashMap<String, (Arc<Semaphore>, usize)>>,
}

impl Turns {
    fn new() -> Self {
        Turns { one: Semaphore::new(1), owners: Mutex::default() }
    }

    async fn run<T>(&self, owner: &str, compute: impl FnOnce() -> T) -> T {
        let queue = Queued::new(self, owner);
        let _first = queue.turn.acquire().await;
        let _turn = self.one.acquire().await;
        let computed = compute();
        yield_now().await; // it looks for other sockets that are ready, and runs their tasks
        computed
    }
}

/// A handshake of an owner, who is forgotten with the last one.
struct Queued<'a> {
    turns: &'a Turns,
    owner: &'a str,
    turn: Arc<Semaphore>,
}

impl<'a> Queued<'a> {
    fn new(turns: &'a Turns, owner: &'a str) -> Self {
        let mut owners = locked(&turns.owners);
        let (turn, count) = owners.entry(owner.to_owned()).or_insert_with(|| (Arc::new(Semaphore::new(1)), 0));
        *count += 1;
        Queued { turns, owner, turn: turn.clone() }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut owners = locked(&self.turns.owners);
        if let Some((_, count)) = owners.get_mut(self.owner) {
            *count -= 1;
            if *count == 0 {
                owners.remove(self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection};

    fn client_hello() -> Vec<u8> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from("gateway.example.org").unwrap();
        let mut hello = Vec::new();
        ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut hello).unwrap();
        hello
    }

    /// The same message in records of so many bytes.
    fn in_records(hello: &[u8], size: usize) -> Vec<u8> {
        let records = hello[RECORD_HEAD_BYTES..].chunks(size);
        records.flat_map(|part| [&[HANDSHAKE, 3, 1, 0, part.len() as u8], part].concat()).collect()
    }

    #[test]
    fn a_first_message_is_awaited_to_its_end_and_no_further() {
        let hello = client_hello();
        for message in [hello.clone(), in_records(&hello, 100), in_records(&hello, 7)] {
            for size in 0..message.len() {
                assert!(wanted(&message[..size]) > size);
            }
            assert_eq!(wanted(&message), message.len());
            assert_eq!(wanted(&[&message[..], b"more"].concat()), message.len());
        }
        let is_done = |bytes: &[u8]| wanted(bytes) <= bytes.len();
        assert!(is_done(b"\x16\x03\x01\x00\x00"), "an empty record");
        assert!(is_done(b"\x16\x03\x01\x00\x03\x01\x00\x00"), "less than the head of a message");
        assert!(is_done(b"\x16\x03\x01\x00\x04\x01\x00\x00\xff\x17\x03\x03\x00\x01\x00"), "another kind of record");
    }

    #[tokio::test]
    async fn a_handshake_waits_for_one_of_each_other_owner_at_most() {
        let (turns, order) = (Arc::new(Turns::new()), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = tokio::task::JoinSet::new();
        for owner in ["a", "a", "a", "a", "b", "c", "b"] {
            let (turns, order) = (turns.clone(), order.clone());
            tasks.spawn(async move { turns.run(owner, || locked(&order).push(owner)).await });
        }
        tasks.join_all().await;
        assert_eq!(locked(&order).concat(), "abcabaa");
        assert!(locked(&turns.owners).is_empty());
    }

    #[tokio::test]
    async fn others_run_between_two_handshakes() {
        let turns = Arc::new(Turns::new());
        let computed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for owner in ["a", "b", "c", "d"] {
            let (turns, computed) = (turns.clone(), computed.clone());
            tasks.spawn(async move {
                turns.run(owner, || computed.fetch_add(1, std::sync::atomic::Ordering::SeqCst)).await;
            });
        }
        for most in 1..4 {
            yield_now().await;
            assert!(computed.load(std::sync::atomic::Ordering::SeqCst) <= most);
        }
        tasks.join_all().await;
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let files = |certificate: &[u8]| Files {
            certificate: certificate.to_vec(),
            private_key: Vec::new(),
            client_ca: Vec::new(),
            requires_client: false,
            is_newest: false,
        };
        assert!(files(b"").config().unwrap_err().starts_with("private key"));
        let broken = b"-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n";
        assert!(files(broken).config().unwrap_err().starts_with("certificate"));
    }
}
