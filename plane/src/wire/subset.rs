//! Which requests the plane may serve by itself: a strict subset of HTTP/1.1. Everything else goes to Python, which
//! judges it; nothing is refused here.

use memchr::memchr_iter;

use super::headers::PREFIX;

/// Most header lines. Clients send ten to twenty.
pub const MAX_LINES: usize = 64;
/// Of one header line. aiohttp refuses one of 8190.
const MAX_LINE_BYTES: usize = 4096;
const MAX_LENGTH_DIGITS: usize = 10;
/// aiohttp refuses a message in which one of these comes twice (RFC 9110 allows one); hosts and lengths are counted by
/// themselves.
const SINGLETONS: [&str; 7] =
    ["content-location", "content-range", "content-type", "etag", "max-forwards", "server", "user-agent"];

/// Why a request goes to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandOver {
    Method,
    Path,
    Version,
    Lines,
    LongLine,
    NoText,
    Host,
    Length,
    LongBody,
    Framing,
    Connection,
    Expectation,
    Encoding,
    Resumption,
    Credentials,
    Browser,
    Internal,
    Repeated,
}

impl HandOver {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            HandOver::Method => "method",
            HandOver::Path => "path",
            HandOver::Version => "version",
            HandOver::Lines => "lines",
            HandOver::LongLine => "long_line",
            HandOver::NoText => "no_text",
            HandOver::Host => "host",
            HandOver::Length => "length",
            HandOver::LongBody => "long_body",
            HandOver::Framing => "framing",
            HandOver::Connection => "connection",
            HandOver::Expectation => "expectation",
            HandOver::Encoding => "encoding",
            HandOver::Resumption => "resumption",
            HandOver::Credentials => "credentials",
            HandOver::Browser => "browser",
            HandOver::Internal => "internal",
            HandOver::Repeated => "repeated",
        }
    }
}

/// A request of the subset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHead<'a> {
    pub path: &'a str,
    /// Bytes of the body.
    pub length: usize,
    /// Whether another request may follow on the connection.
    pub keeps_alive: bool,
}

/// A whole head, and what httparse read of it. `is_path`: whether the plane serves a path. `most_bytes`: of a body.
///
/// # Errors
/// The reason for which Python gets the request.
pub fn plain_head<'a>(
    head: &[u8],
    request: &httparse::Request<'_, 'a>,
    is_path: impl Fn(&str) -> bool,
    most_bytes: usize,
) -> Result<PlainHead<'a>, HandOver> {
    // httparse also takes empty lines before a head.
    if !head.starts_with(b"POST ") {
        return Err(HandOver::Method);
    }
    // It takes lines that end without a return, too.
    if memchr_iter(b'\n', head).any(|at| at == 0 || head.get(at - 1) != Some(&b'\r')) {
        return Err(HandOver::Lines);
    }
    if request.version != Some(1) {
        return Err(HandOver::Version);
    }
    let path = request.path.filter(|path| is_path(path)).ok_or(HandOver::Path)?;
    if request.headers.len() > MAX_LINES {
        return Err(HandOver::Lines);
    }
    let mut framing = Framing::default();
    for header in request.headers.iter() {
        framing.add(header)?;
    }
    if framing.hosts != 1 {
        return Err(HandOver::Host);
    }
    let length = framing.length.ok_or(HandOver::Length)?;
    if length > most_bytes {
        return Err(HandOver::LongBody);
    }
    Ok(PlainHead { path, length, keeps_alive: !framing.closes })
}

/// What the header lines so far say of the message.
#[derive(Default)]
struct Framing {
    hosts: u32,
    length: Option<usize>,
    connections: u32,
    closes: bool,
    authorizations: u32,
    /// By `SINGLETONS`.
    seen: [bool; SINGLETONS.len()],
}

impl Framing {
    fn add(&mut self, header: &httparse::Header<'_>) -> Result<(), HandOver> {
        let (name, value) = (header.name, header.value);
        if name.len() + value.len() > MAX_LINE_BYTES {
            return Err(HandOver::LongLine);
        }
        // Names are tokens. Python reads other bytes as lone surrogates, and some letters fold to ASCII.
        if !value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
            return Err(HandOver::NoText);
        }
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        match name.len() {
            2 if is("te") => return Err(HandOver::Framing),
            4 if is("host") => self.hosts += 1,
            6 if is("expect") => return Err(HandOver::Expectation),
            6 if is("origin") => return Err(HandOver::Browser),
            7 if is("upgrade") => return Err(HandOver::Connection),
            7 if is("trailer") => return Err(HandOver::Framing),
            10 if is("connection") => self.add_connection(value)?,
            13 if is("authorization") => self.add_authorization()?,
            13 if is("last-event-id") => return Err(HandOver::Resumption),
            14 if is("content-length") => self.add_length(value)?,
            14 if is("http2-settings") => return Err(HandOver::Connection),
            16 if is("proxy-connection") => return Err(HandOver::Connection),
            16 if is("content-encoding") => return Err(HandOver::Encoding),
            17 if is("transfer-encoding") => return Err(HandOver::Framing),
            _ => {
                self.add_singleton(name)?;
                return internal(name);
            }
        }
        Ok(())
    }

    fn add_singleton(&mut self, name: &str) -> Result<(), HandOver> {
        let place = SINGLETONS.iter().position(|singleton| name.eq_ignore_ascii_case(singleton));
        match place.and_then(|place| self.seen.get_mut(place)) {
            Some(seen) if *seen => Err(HandOver::Repeated),
            Some(seen) => {
                *seen = true;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn add_connection(&mut self, value: &[u8]) -> Result<(), HandOver> {
        self.connections += 1;
        self.closes = value.eq_ignore_ascii_case(b"close");
        if self.connections > 1 || !(self.closes || value.eq_ignore_ascii_case(b"keep-alive")) {
            return Err(HandOver::Connection);
        }
        Ok(())
    }

    fn add_authorization(&mut self) -> Result<(), HandOver> {
        self.authorizations += 1;
        if self.authorizations > 1 {
            return Err(HandOver::Credentials);
        }
        Ok(())
    }

    fn add_length(&mut self, value: &[u8]) -> Result<(), HandOver> {
        let is_number = !value.is_empty() && value.len() <= MAX_LENGTH_DIGITS && value.iter().all(u8::is_ascii_digit);
        if self.length.is_some() || !is_number {
            return Err(HandOver::Length);
        }
        self.length = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
        Ok(())
    }
}

/// Of Slipway's own headers a client sends one alone.
fn internal(name: &str) -> Result<(), HandOver> {
    let begin = name.get(..PREFIX.len()).unwrap_or_default();
    if begin.eq_ignore_ascii_case(PREFIX) && !name.eq_ignore_ascii_case("x-slipway-resumable") {
        return Err(HandOver::Internal);
    }
    Ok(())
}
