//! The model server behind all peers, in Rust: `slipway-bench-mock PORT EVENTS GAP_MS MARKS`.
//!
//! It answers what `bench/gateway/upstream.py` answers, byte for byte (`tests/bench/test_gateway_mock.py` compares
//! them), for half of the CPU time: JSON, a message of protobuf, or a stream of EVENTS events, one each GAP_MS. With
//! MARKS=1 its streams have the marks by which slipway-server's can be resumed. Of HTTP/1.1 it reads what it must: the
//! length of a body, or its chunks, and whether a stream is requested.
#![forbid(unsafe_code)]

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{spawn_local, LocalSet};
use tokio::time::{interval, MissedTickBehavior};

const JSON: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there."},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}"#;
/// A ModelInferResponse of the Open Inference Protocol: the model's name is `m`.
const PROTOBUF: &str = "\x0a\x01m";
const EVENT: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"}}]}"#;
const LAST: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n";
const MARKED_HEAD: &str =
    "X-Slipway-Stream: 1-1-0123456789abcdef0123456789abcdef\r\nX-Slipway-Prompt-Tokens: 5\r\n";
/// More than any peer adds to a request. A longer one is closed, not collected.
const LONGEST_REQUEST: usize = 4 << 20;

#[derive(Clone, Copy)]
struct Streams {
    events: u64,
    gap: Duration,
    marks: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok())
        .collect();
    let &[port, events, gap_ms, marks] = arguments.as_slice() else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "usage: slipway-bench-mock PORT EVENTS GAP_MS MARKS",
        ));
    };
    let port = u16::try_from(port).map_err(|error| Error::new(ErrorKind::InvalidInput, error))?;
    let streams = Streams {
        events,
        gap: Duration::from_millis(gap_ms.max(1)),
        marks: marks == 1,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, serve(port, streams))
}

async fn serve(port: u16, streams: Streams) -> Result<()> {
    let listener = listen(port)?;
    loop {
        // Without a free descriptor an accept fails at once: the next one waits a little.
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        spawn_local(async move {
            // A peer that leaves ends its connection; there is nothing to report.
            let _ = answer_all(socket, streams).await;
        });
    }
}

fn listen(port: u16) -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(([127, 0, 0, 1], port).into())?;
    socket.listen(4096)
}

/// One connection, until the peer closes it.
async fn answer_all(mut socket: TcpStream, streams: Streams) -> Result<()> {
    socket.set_nodelay(true)?;
    let (json, protobuf) = (
        answer("application/json", JSON),
        answer("application/x-protobuf", PROTOBUF),
    );
    let mut received = Vec::with_capacity(8192);
    loop {
        let request = loop {
            if let Some(request) = read_request(&received)? {
                break request;
            }
            if received.len() > LONGEST_REQUEST || socket.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        };
        received.drain(..request.length);
        match request.kind {
            Kind::Json => socket.write_all(&json).await?,
            Kind::Protobuf => socket.write_all(&protobuf).await?,
            Kind::Stream => send_stream(&mut socket, streams).await?,
        }
    }
}

async fn send_stream(socket: &mut TcpStream, streams: Streams) -> Result<()> {
    let marked = if streams.marks { MARKED_HEAD } else { "" };
    socket
        .write_all(format!("{STREAM_HEAD}{marked}\r\n").as_bytes())
        .await?;
    let mut ticks = interval(streams.gap);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 1..=streams.events {
        ticks.tick().await;
        let mark = if streams.marks {
            format!(": {number}.0a1b2c3d {}\n", 1000 + number)
        } else {
            String::new()
        };
        socket
            .write_all(&chunk(&format!("{mark}{EVENT}\n\n")))
            .await?;
    }
    ticks.tick().await;
    let mut end = chunk(&format!("{LAST}\n\ndata: [DONE]\n\n"));
    end.extend_from_slice(b"0\r\n\r\n");
    socket.write_all(&end).await
}

fn answer(content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

enum Kind {
    Json,
    Protobuf,
    Stream,
}

/// A request that has arrived. `length`: of its head and body together, in bytes.
struct Request {
    kind: Kind,
    length: usize,
}

/// The first request of what was received; None: more of it is to come.
fn read_request(received: &[u8]) -> Result<Option<Request>> {
    let Some(end) = find(received, b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
    let body = &received[end + 4..];
    let length = match field(&head, "transfer-encoding") {
        // Each chunk ends a line, so the last one is found whole, and texts of JSON have no line breaks.
        Some(_) if body.starts_with(b"0\r\n\r\n") => Some(5),
        Some(_) => find(body, b"\r\n0\r\n\r\n").map(|at| at + 7),
        None => field(&head, "content-length")
            .map_or(Ok(Some(0)), |text| text.parse().map(Some))
            .map_err(invalid)?,
    };
    let Some(length) = length.filter(|&length| length <= body.len()) else {
        return Ok(None);
    };
    let kind = if field(&head, "content-type") == Some("application/x-protobuf") {
        Kind::Protobuf
    } else if find(&body[..length], b"\"stream\":true")
        .or(find(&body[..length], b"\"stream\": true"))
        .is_some()
    {
        Kind::Stream
    } else {
        Kind::Json
    };
    Ok(Some(Request {
        kind,
        length: end + 4 + length,
    }))
}

fn invalid(error: std::num::ParseIntError) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head
        .split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'));
    fields
        .find(|(each, _)| *each == name)
        .map(|(_, value)| value.trim())
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
