//! The listener and what it hands over, as classes of Python.

use std::net::{SocketAddr, TcpListener as Socket};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::lane::{Begun, Lane, LogEntry, Recount};
use crate::handover::{self, locked, Encryption};
use crate::limits::places::{self, Refusal};
use crate::listener::{self, Settings};
use crate::serving::bridge::Bridge;
use crate::serving::tls::Files;

#[pyclass(frozen)]
pub struct Listener(listener::Listener);

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (
        sockets, *, max_connections, percentage, max_per_address, longest_silence_s, refusal_total, refusal_share,
        lane = None, longest_handshake_s = None
    ))]
    #[allow(clippy::too_many_arguments)] // all by name
    fn new(
        sockets: Vec<i32>,
        max_connections: u64,
        percentage: u64,
        max_per_address: u64,
        longest_silence_s: f64,
        refusal_total: Vec<u8>,
        refusal_share: Vec<u8>,
        lane: Option<PyRef<'_, Lane>>,
        longest_handshake_s: Option<f64>,
    ) -> PyResult<Self> {
        if sockets.iter().any(|descriptor| *descriptor < 0) {
            return Err(PyValueError::new_err("sockets: a descriptor is negative"));
        }
        // SAFETY: the caller detached these descriptors from its sockets, so that nothing else closes them.
        let own = |descriptor| Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let settings = Settings {
            max_connections,
            percentage: percentage.min(100),
            max_per_address,
            longest_silence: duration("longest_silence_s", longest_silence_s)?,
            longest_handshake: longest_handshake_s.map(|given| duration("longest_handshake_s", given)).transpose()?,
            refusal_total,
            refusal_share,
        };
        Ok(Listener(listener::Listener::new(
            sockets.into_iter().map(own).collect(),
            settings,
            lane.map(|one| one.0.clone()),
        )?))
    }

    fn start(&self) -> PyResult<()> {
        Ok(self.0.start()?)
    }

    /// TLS of the handshakes that begin from now on. `certificate` and what follows: in PEM.
    #[pyo3(signature = (certificate, private_key, client_ca, *, requires_client, is_newest))]
    fn secure(
        &self,
        py: Python<'_>,
        certificate: Vec<u8>,
        private_key: Vec<u8>,
        client_ca: Vec<u8>,
        requires_client: bool,
        is_newest: bool,
    ) -> PyResult<()> {
        let tls = self.0.tls().ok_or_else(|| PyRuntimeError::new_err("the port has no TLS"))?;
        let files = Files { certificate, private_key, client_ca, requires_client, is_newest };
        tls.replace(Some(py.detach(|| files.config()).map_err(PyValueError::new_err)?));
        Ok(())
    }

    /// Python does the handshakes that begin from now on.
    fn leave_handshakes(&self) {
        self.0.tls().inspect(|tls| tls.replace(None));
    }

    fn fileno(&self) -> i32 {
        self.0.handover().event().as_raw_fd()
    }

    fn take(&self, py: Python<'_>) -> PyResult<News> {
        News::new(py, self.0.handover().take())
    }

    #[getter]
    fn connections(&self) -> u64 {
        self.0.connections()
    }

    #[getter]
    fn silent(&self) -> u64 {
        self.0.silent()
    }

    fn close_silent(&self, idle_s: f64) -> PyResult<()> {
        self.0.close_silent(duration("idle_s", idle_s)?);
        Ok(())
    }

    fn drain(&self, longest_silence_s: f64) -> PyResult<()> {
        self.0.drain(duration("longest_silence_s", longest_silence_s)?);
        Ok(())
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

#[pyclass(frozen, get_all)]
pub struct News {
    handed: Vec<Py<Handed>>,
    refused_total: u64,
    refused_share: u64,
    closed_idle: u64,
    failed_handshakes: u64,
    panics: u64,
    accept_failures: u64,
    ended: Option<String>,
    logged: Vec<LogEntry>,
    unlogged: u64,
    recounts: Vec<Recount>,
    calls: Vec<CallTuple>,
    settlements: Vec<SettlementTuple>,
    paused_relays: Vec<u64>,
}

/// Ticket, tenant, id of the request, and amounts.
type CallTuple = (u64, String, String, [i64; 3]);
/// Tenant, id of the request, and what it used.
type SettlementTuple = (String, String, [Option<i64>; 3]);

impl News {
    fn new(py: Python<'_>, news: handover::News) -> PyResult<News> {
        let handed = news.handed.into_iter();
        Ok(News {
            handed: handed.map(|connection| Py::new(py, Handed::from(connection))).collect::<PyResult<_>>()?,
            refused_total: news.refused_total,
            refused_share: news.refused_share,
            closed_idle: news.closed_idle,
            failed_handshakes: news.failed_handshakes,
            panics: news.panics,
            accept_failures: news.accept_failures,
            ended: news.ended,
            logged: news.logged.into_iter().map(LogEntry::from).collect(),
            unlogged: news.unlogged,
            recounts: news.recounts.into_iter().map(Recount::from).collect(),
            calls: news.calls.into_iter().map(|one| (one.ticket, one.tenant, one.id, one.amounts)).collect(),
            paused_relays: news.paused_relays,
            settlements: news.settlements.into_iter().map(|one| (one.tenant, one.id, one.used)).collect(),
        })
    }
}

/// A connection that Python has not opened holds its socket; one that it has not left holds its place.
#[pyclass(frozen)]
pub struct Handed {
    owner: String,
    connection: Mutex<(Option<OwnedFd>, Vec<u8>, Option<handover::Place>)>,
    encryption: Encryption,
    begun: Mutex<Option<Box<handover::Begun>>>,
    returns: handover::Returns,
}

impl From<handover::Handed> for Handed {
    fn from(handed: handover::Handed) -> Self {
        let handover::Handed { socket, first_bytes, owner, place, encryption, begun, returns } = handed;
        let connection = Mutex::new((Some(socket), first_bytes, place));
        Handed { owner, connection, encryption, begun: Mutex::new(begun), returns }
    }
}

#[pymethods]
impl Handed {
    #[getter]
    fn owner(&self) -> &str {
        &self.owner
    }

    fn detach(&self) -> PyResult<i32> {
        let socket = locked(&self.connection).0.take();
        Ok(socket.ok_or_else(|| PyRuntimeError::new_err("the socket was detached before"))?.into_raw_fd())
    }

    fn take_first_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &std::mem::take(&mut locked(&self.connection).1))
    }

    /// Whether the connection may be given back to the lane: at once, or with the next table.
    #[getter]
    fn returns(&self) -> (bool, bool) {
        (self.returns == handover::Returns::AtOnce, self.returns == handover::Returns::WithTable)
    }

    /// The lane serves the connection again. `descriptor`: of its socket, which is the lane's from here on.
    fn give_back(&self, lane: &Lane, descriptor: i32) -> PyResult<()> {
        if descriptor < 0 {
            return Err(PyValueError::new_err("descriptor: it is negative"));
        }
        // SAFETY: the caller made this descriptor for the lane, so that nothing else closes it.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        match &self.encryption {
            Encryption::Bridged(bridge) => bridge.give_back(socket),
            _ => {
                if let Some(place) = locked(&self.connection).2.take() {
                    lane.0.give_back(socket.into(), place);
                }
            }
        }
        Ok(())
    }

    /// Whether Python has to do its TLS handshake.
    #[getter]
    fn needs_handshake(&self) -> bool {
        matches!(self.encryption, Encryption::Ahead)
    }

    #[getter]
    fn secured(&self) -> Option<Secured> {
        match &self.encryption {
            Encryption::Bridged(bridge) => Some(Secured(bridge.clone())),
            _ => None,
        }
    }

    fn take_begun(&self) -> Option<Begun> {
        locked(&self.begun).take().map(Begun::from)
    }

    fn leave(&self) {
        drop(locked(&self.begun).take());
        let place = locked(&self.connection).2.take();
        drop(place);
    }
}

/// What is known of a connection whose TLS session the thread has.
#[pyclass(frozen)]
pub struct Secured(Arc<Bridge>);

#[pymethods]
impl Secured {
    #[getter]
    fn peer(&self) -> (String, u16) {
        named(self.0.peer)
    }

    #[getter]
    fn local(&self) -> (String, u16) {
        named(self.0.local)
    }

    #[getter]
    fn certificate<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.certificate.as_ref().map(|der| PyBytes::new(py, der))
    }

    #[getter]
    fn server_name(&self) -> Option<&str> {
        self.0.server_name.as_deref()
    }

    fn cut(&self) {
        self.0.cut();
    }
}

fn named(address: SocketAddr) -> (String, u16) {
    (address.ip().to_string(), address.port())
}

#[pyclass(frozen)]
pub struct Places(pub Arc<Mutex<places::Places>>);

#[pymethods]
impl Places {
    #[new]
    #[pyo3(signature = (limit, percentage = 50, most = 0))]
    fn new(limit: u64, percentage: u64, most: u64) -> Self {
        Places(Arc::new(Mutex::new(places::Places::new(limit, percentage.min(100), most))))
    }

    #[getter]
    fn used(&self) -> u64 {
        locked(&self.0).used()
    }

    fn take(&self, owner: &str) -> &'static str {
        match locked(&self.0).take(owner) {
            Ok(()) => "",
            Err(Refusal::Total) => "total",
            Err(Refusal::Share) => "share",
        }
    }

    fn leave(&self, owner: &str) {
        locked(&self.0).leave(owner);
    }
}

/// Raises ValueError: not a time. A time beyond a century is one of a century.
pub fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("{name}: not a time of 0 or more seconds")));
    }
    Ok(Duration::from_secs_f64(seconds.min(3e9)))
}
