//! One attempt at one endpoint: sends a request and reads a whole response. Whatever else happens is Python's, with the
//! connection to the endpoint and all that came over it.

use std::io;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use crate::balancing::in_flight::Endpoint;
use crate::lane::{Lane, DRAINING};
use crate::serving::streams::ClientStream;
use crate::upstream::pool::EndpointConnection;

/// Header lines of a response.
const MAX_LINES: usize = 64;
const READ_BYTES: usize = 8 << 10;
const STREAM: &[u8] = b"text/event-stream";

/// Where a whole response is in what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub head_bytes: usize,
    pub body_bytes: usize,
    /// Whether the connection may serve another request.
    pub stays: bool,
}

/// How an attempt ended, as far as the lane goes.
#[derive(Debug)]
pub enum Attempted {
    Whole {
        received: Vec<u8>,
        whole: Whole,
        connection: EndpointConnection,
    },
    ClientLeft,
    /// Python goes on with it. `connection`: None where none could be opened. `unsent`: the rest of the request.
    Python {
        reason: &'static str,
        connection: Option<EndpointConnection>,
        received: Vec<u8>,
        unsent: Vec<u8>,
    },
}

/// What a response's beginning is.
#[derive(Debug, PartialEq, Eq)]
enum Begun {
    Part,
    Whole(Whole),
    Other(&'static str),
}

/// A client, while its response is awaited. `next`: what it sends meanwhile.
#[derive(Debug)]
pub struct Waiting<'a> {
    pub stream: &'a ClientStream,
    pub next: &'a mut Vec<u8>,
}

/// What a client did while its response was awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    /// It closed its connection, or its half of it.
    Left,
    /// It sent more, which Python bounds.
    Sent,
}

impl Waiting<'_> {
    async fn moved(&mut self) -> Moved {
        loop {
            if !self.next.is_empty() {
                return Moved::Sent;
            }
            if self.stream.readable().await.is_err() {
                return Moved::Left;
            }
            self.next.reserve(READ_BYTES);
            match self.stream.try_read_buf(self.next) {
                Ok(0) => return Moved::Left,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Moved::Left,
                _ => {}
            }
        }
    }
}

/// Sends `message`, a whole request, and reads its response until `deadline`. `is_json`: no other type is relayed.
pub async fn attempt(
    lane: &Lane,
    endpoint: &Endpoint,
    message: Vec<u8>,
    deadline: Instant,
    mut client: Waiting<'_>,
    is_json: bool,
) -> Attempted {
    let connection = match lane.pool.take(endpoint.address) {
        Some(connection) => connection,
        None => {
            let opened = timeout(lane.settings.connect_timeout, EndpointConnection::open(endpoint.address));
            tokio::pin!(opened);
            let opened = tokio::select! {
                opened = &mut opened => opened,
                moved = client.moved() => match moved {
                    Moved::Left => return Attempted::ClientLeft,
                    Moved::Sent => opened.await, // what it sent is Python's, with the connection
                },
            };
            match opened {
                Ok(Ok(connection)) => connection,
                _ => return to_python("connect", None, Vec::new(), message),
            }
        }
    };
    let mut sent = 0;
    let mut received = Vec::new();
    let patience = sleep_until(deadline.into());
    let draining = lane.draining();
    tokio::pin!(patience, draining);
    loop {
        while let Some(rest) = message.get(sent..).filter(|rest| !rest.is_empty()) {
            match connection.stream.try_write(rest) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return to_python("upstream", Some(connection), received, rest.to_vec()),
            }
        }
        let is_sent = sent == message.len();
        tokio::select! {
            biased;
            ready = connection.stream.readable() => {
                let begun = match ready.map(|()| read(&connection.stream, &mut received)) {
                    Ok(Ok(0)) | Err(_) => Begun::Other("upstream"),
                    Ok(Ok(_)) if !is_sent => Begun::Other("early"),
                    Ok(Ok(_)) => begun(lane, &received, is_json),
                    Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Begun::Part,
                    Ok(Err(_)) => Begun::Other("upstream"),
                };
                match begun {
                    Begun::Part => {}
                    Begun::Whole(whole) => return Attempted::Whole { received, whole, connection },
                    Begun::Other(reason) => {
                        return to_python(reason, Some(connection), received, rest_of(message, sent));
                    }
                }
            }
            _ = connection.stream.writable(), if !is_sent => {}
            moved = client.moved() => match moved {
                Moved::Left => return Attempted::ClientLeft,
                Moved::Sent => return to_python("pipelined", Some(connection), received, rest_of(message, sent)),
            },
            () = &mut draining => return to_python(DRAINING, Some(connection), received, rest_of(message, sent)),
            () = &mut patience => return to_python("slow", Some(connection), received, rest_of(message, sent)),
        }
    }
}

fn to_python(
    reason: &'static str,
    connection: Option<EndpointConnection>,
    received: Vec<u8>,
    unsent: Vec<u8>,
) -> Attempted {
    Attempted::Python { reason, connection, received, unsent }
}

fn rest_of(mut message: Vec<u8>, sent: usize) -> Vec<u8> {
    message.drain(..sent.min(message.len()));
    message
}

fn read(stream: &TcpStream, received: &mut Vec<u8>) -> io::Result<usize> {
    received.reserve(READ_BYTES);
    stream.try_read_buf(received)
}

/// Looks at what was received of a response: the lane relays whole JSON of status 200 with a length, and nothing else.
fn begun(lane: &Lane, received: &[u8], wants_json: bool) -> Begun {
    let mut headers = [httparse::EMPTY_HEADER; MAX_LINES];
    let mut response = httparse::Response::new(&mut headers);
    let head_bytes = match response.parse(received) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) if received.len() < lane.settings.max_head_bytes => return Begun::Part,
        _ => return Begun::Other("response_head"),
    };
    let head = received.get(..head_bytes).unwrap_or_default();
    if response.version != Some(1) || !head.starts_with(b"HTTP/1.1 ") || has_bare_line(head) {
        return Begun::Other("response_head");
    }
    if response.code != Some(200) {
        return Begun::Other("status");
    }
    match framing(response.headers, wants_json) {
        Err(reason) => Begun::Other(reason),
        Ok((length, _)) if length > lane.settings.max_response_bytes => Begun::Other("long_response"),
        Ok((length, stays)) => match received.len().cmp(&(head_bytes + length)) {
            std::cmp::Ordering::Less => Begun::Part,
            std::cmp::Ordering::Equal => Begun::Whole(Whole { head_bytes, body_bytes: length, stays }),
            std::cmp::Ordering::Greater => Begun::Other("response_end"),
        },
    }
}

/// Whether a line ends without a return, or begins with white space.
fn has_bare_line(head: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', head).any(|at| {
        let is_folded = at + 1 < head.len() && matches!(head.get(at + 1), Some(b' ' | b'\t'));
        at == 0 || head.get(at - 1) != Some(&b'\r') || is_folded
    })
}

/// The length of a body in JSON, and whether the connection stays.
fn framing(headers: &[httparse::Header<'_>], wants_json: bool) -> Result<(usize, bool), &'static str> {
    let (mut length, mut is_json, mut stays) = (None, None, true);
    for header in headers {
        let (name, value) = (header.name, header.value);
        if !value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
            return Err("response_head");
        }
        if name.eq_ignore_ascii_case("content-length") {
            let is_number = !value.is_empty() && value.len() <= 10 && value.iter().all(u8::is_ascii_digit);
            let digits = std::str::from_utf8(value).ok().filter(|_| is_number && length.is_none());
            length = Some(digits.and_then(|digits| digits.parse().ok()).ok_or("response_head")?);
        } else if name.eq_ignore_ascii_case("content-type") {
            if is_json.is_some() {
                return Err("response_head");
            }
            let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
            let is_plain = if wants_json {
                b"application/json".eq_ignore_ascii_case(kind.trim_ascii())
            } else {
                !value.trim_ascii().get(..STREAM.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(STREAM))
            };
            is_json = Some(is_plain);
        } else if ["transfer-encoding", "trailer"].iter().any(|other| name.eq_ignore_ascii_case(other)) {
            return Err("chunked");
        } else if name.eq_ignore_ascii_case("upgrade") {
            return Err("upgrade");
        } else if name.eq_ignore_ascii_case("connection") {
            match value {
                _ if value.eq_ignore_ascii_case(b"keep-alive") => {}
                _ if value.eq_ignore_ascii_case(b"close") => stays = false,
                _ => return Err("response_head"),
            }
        }
    }
    if is_json != Some(true) {
        return Err("no_json");
    }
    length.map(|length| (length, stays)).ok_or("chunked")
}
