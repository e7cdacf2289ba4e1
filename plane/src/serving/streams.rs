//! A client's connection whose bytes are plain here: the socket itself, or a TLS session over it.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::sync::Mutex;

use rustls::ServerConnection;
use tokio::net::TcpStream;
use tokio::task::consume_budget;

use crate::handover::locked;

/// What one TLS session keeps of data that its client does not read.
const MAX_UNSENT_BYTES: usize = 64 << 10;
/// Reads of a socket for one of plain bytes. More records without any are looked at when others had their turn.
const MAX_READS: usize = 4;

#[derive(Debug)]
pub enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

/// A session after its handshake. One task uses it, so that its lock is always free.
#[derive(Debug)]
pub struct TlsStream {
    tcp: TcpStream,
    session: Mutex<ServerConnection>,
}

impl ClientStream {
    pub fn tls(tcp: TcpStream, mut session: ServerConnection) -> Self {
        session.set_buffer_limit(Some(MAX_UNSENT_BYTES));
        ClientStream::Tls(Box::new(TlsStream { tcp, session: Mutex::new(session) }))
    }

    pub fn tcp(&self) -> &TcpStream {
        match self {
            ClientStream::Plain(tcp) => tcp,
            ClientStream::Tls(tls) => &tls.tcp,
        }
    }

    /// Returns when a read may find something. Like all that waits here, it may be dropped at any time.
    pub async fn readable(&self) -> io::Result<()> {
        if let ClientStream::Tls(tls) = self {
            consume_budget().await; // unlike a socket, it may be readable many times without a byte
            if tls.has_plain_bytes() {
                return Ok(());
            }
        }
        self.tcp().readable().await
    }

    /// Appends what is there. 0: the client ended its half. Raises WouldBlock: nothing is there.
    pub fn try_read_buf(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            ClientStream::Plain(tcp) => tcp.try_read_buf(into),
            ClientStream::Tls(tls) => tls.try_read_buf(into),
        }
    }

    pub async fn writable(&self) -> io::Result<()> {
        self.tcp().writable().await
    }

    /// Takes a part of the data. It may still wait here: see `try_flush`. Raises WouldBlock: it takes nothing now.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        match self {
            ClientStream::Plain(tcp) => tcp.try_write(data),
            ClientStream::Tls(tls) => tls.try_write(data),
        }
    }

    /// Gives the kernel what waits here. Raises WouldBlock: it did not take all of it.
    pub fn try_flush(&self) -> io::Result<()> {
        match self {
            ClientStream::Plain(_) => Ok(()),
            ClientStream::Tls(tls) => flush(&tls.tcp, &mut locked(&tls.session)),
        }
    }

    /// Tells the client that no data follows, where its protocol can. What waits here goes before that, if it can go.
    pub fn close(&self) {
        if let ClientStream::Tls(tls) = self {
            locked(&tls.session).send_close_notify();
            let _ = self.try_flush(); // a client that does not read learns of it by the socket's end
        }
    }

    /// The client's certificate, in DER, and the name by which it called this server.
    pub fn peer(&self) -> (Option<Vec<u8>>, Option<String>) {
        let ClientStream::Tls(tls) = self else { return (None, None) };
        let session = locked(&tls.session);
        let certificate = session.peer_certificates().and_then(<[_]>::first).map(|one| one.to_vec());
        (certificate, session.server_name().map(str::to_owned))
    }

    /// Bytes that a response of this size needs here.
    pub fn buffered_bytes(&self, size: usize) -> usize {
        match self {
            ClientStream::Plain(_) => 0,
            ClientStream::Tls(_) => size.min(MAX_UNSENT_BYTES),
        }
    }
}

impl TlsStream {
    fn has_plain_bytes(&self) -> bool {
        !matches!(locked(&self.session).reader().fill_buf(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    fn try_read_buf(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        let mut session = locked(&self.session);
        for _ in 0..MAX_READS {
            let mut reader = session.reader();
            match reader.fill_buf() {
                Ok(data) => {
                    let size = data.len();
                    into.extend_from_slice(data);
                    reader.consume(size);
                    return Ok(size);
                }
                // The socket ended without the alert that should come before. HTTP knows where its messages end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            receive(&self.tcp, &mut session)?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let mut session = locked(&self.session);
        flush(&self.tcp, &mut session)?;
        let size = session.writer().write(data)?;
        match flush(&self.tcp, &mut session) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(size),
        }
    }
}

/// Reads once and decrypts that; returns how much came, 0 at the socket's end. Raises WouldBlock: nothing was there;
/// InvalidData: it is no TLS, as its client is told.
pub(crate) fn receive(tcp: &TcpStream, session: &mut ServerConnection) -> io::Result<usize> {
    let size = session.read_tls(&mut Socket(tcp))?;
    let processed = session.process_new_packets();
    // Tickets, new keys, and alerts. What does not go now goes with the next data.
    let flushed = flush(tcp, session);
    processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    match flushed {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(size),
    }
}

pub(crate) fn flush(tcp: &TcpStream, session: &mut ServerConnection) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(&mut Socket(tcp))?;
    }
    Ok(())
}

/// Reads and writes what the socket has and takes at once.
struct Socket<'a>(&'a TcpStream);

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.try_write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
