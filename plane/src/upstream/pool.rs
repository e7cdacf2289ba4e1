//! Connections to endpoints that wait for their next request.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use crate::handover::locked;

pub const IDLE: Duration = Duration::from_secs(15);
/// Idle connections of one endpoint. A burst leaves more, which are closed.
const MAX_IDLE: usize = 256;
/// Endpoints are near, so a small buffer is fast enough.
const RECEIVE_BUFFER_BYTES: u32 = 64 << 10;
/// A node that is gone sends no reset: its connections die by silence, within half a minute.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
const UNSENT: Duration = Duration::from_secs(25);

/// A connection to an endpoint. `was_idle`: it waited for its present request.
#[derive(Debug)]
pub struct EndpointConnection {
    pub stream: TcpStream,
    pub was_idle: bool,
    idle_since: Instant,
}

/// Idle connections by address. The one that was used last is used first.
#[derive(Debug, Default)]
pub struct EndpointPool(Mutex<HashMap<SocketAddr, Vec<EndpointConnection>>>);

impl EndpointPool {
    /// An idle connection that its server has not closed.
    pub fn take(&self, address: SocketAddr) -> Option<EndpointConnection> {
        let mut all = locked(&self.0);
        let idle = all.get_mut(&address)?;
        while let Some(mut connection) = idle.pop() {
            if connection.idle_since.elapsed() < IDLE && connection.is_quiet() {
                connection.was_idle = true;
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose response ended.
    pub fn keep(&self, address: SocketAddr, mut connection: EndpointConnection) {
        connection.idle_since = Instant::now();
        let mut all = locked(&self.0);
        let idle = all.entry(address).or_default();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    /// Closes what was idle for too long, or was closed by its server.
    pub fn close_unused(&self) {
        locked(&self.0).retain(|_, idle| {
            idle.retain(|one| one.idle_since.elapsed() < IDLE && one.is_quiet());
            !idle.is_empty()
        });
    }
}

impl EndpointConnection {
    /// Opens a connection. Returns what the system has against it.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        socket.set_nodelay(true)?;
        let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES);
        let options = SockRef::from(&socket);
        options.set_tcp_keepalive(&probes)?;
        options.set_tcp_user_timeout(Some(UNSENT))?;
        let stream = socket.connect(address).await?;
        Ok(EndpointConnection { stream, was_idle: false, idle_since: Instant::now() })
    }

    /// Whether its server has neither closed it nor sent what no one asked for.
    fn is_quiet(&self) -> bool {
        let mut byte = [0_u8; 1];
        matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
