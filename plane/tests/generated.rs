//! Generated inputs for what reads bytes of strangers: the rule of the subset, the aligner, bodies in chunks, and the
//! fields of a body.
//!
//! An ordinary run tries a few thousand inputs, the same each time. With `PLANE_FUZZ_S` each target runs for so many
//! seconds, with other inputs each time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

use slipway_plane_native::wire::chunks::{write_chunk, ChunkDecoder};
use slipway_plane_native::wire::request_fields::{Field, RequestFields};
use slipway_plane_native::wire::sse::{EventAligner, KEEP_ALIVE};
use slipway_plane_native::wire::subset::plain_head;

const PATHS: [&str; 2] = ["/v1/chat/completions", "/v1/completions"];
const MOST_BYTES: usize = 65_536;

fn run<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> TestCaseResult) {
    let seconds = std::env::var("PLANE_FUZZ_S").ok().and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let config = Config { cases: 3000, failure_persistence: None, ..Config::default() };
    let Some(seconds) = seconds else {
        let algorithm = proptest::test_runner::RngAlgorithm::ChaCha;
        let random = proptest::test_runner::TestRng::deterministic_rng(algorithm);
        TestRunner::new_with_rng(config, random).run(&strategy, test).unwrap();
        return;
    };
    let began = Instant::now();
    let mut runner = TestRunner::new(config);
    while began.elapsed() < seconds {
        runner.run(&strategy, &test).unwrap();
    }
}

/// Tokens and any bytes, in any order.
fn mixed(tokens: &'static [&'static [u8]], most: usize) -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        8 => select(tokens).prop_map(<[u8]>::to_vec),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(part, 0..most).prop_map(|parts| parts.concat())
}

const HEAD: &[&[u8]] = &[
    b"POST /v1/completions HTTP/1.1\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n",
    b"Host: a\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length:\t 70000 \r\n",
    b"content-length: 3, 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"Last-Event-ID: 1\r\n",
    b"X-Slipway-Tenant: a\r\n",
    b"Content-Encoding: br\r\n",
    b"Accept: */*\r\n",
    b" folded\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b":",
    b" ",
    b"\0",
];

/// The lines of a head, by the simplest reading.
fn lines(head: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(head).into_owned();
    let split = |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    text.split('\n').skip(1).map(|line| line.trim_end_matches('\r')).filter_map(split).collect()
}

#[test]
fn a_plain_head_is_one_that_cannot_be_read_in_two_ways() {
    run(mixed(HEAD, 12), |head| {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(size)) = request.parse(&head) else { return Ok(()) };
        let Ok(plain) = plain_head(&head[..size], &request, |path| PATHS.contains(&path), MOST_BYTES) else {
            return Ok(());
        };
        let found = lines(&head[..size]);
        let all = |name: &str| found.iter().filter(|(one, _)| one == name).map(|(_, value)| value).collect::<Vec<_>>();
        prop_assert_eq!(all("content-length").len(), 1);
        prop_assert_eq!(all("content-length")[0].parse::<usize>().ok(), Some(plain.length));
        prop_assert_eq!(all("host").len(), 1);
        for name in ["transfer-encoding", "expect", "upgrade", "last-event-id", "content-encoding", "x-slipway-tenant"]
        {
            prop_assert!(all(name).is_empty(), "{}", name);
        }
        prop_assert!(plain.length <= MOST_BYTES && PATHS.contains(&plain.path));
        prop_assert_eq!(plain.keeps_alive, all("connection") != ["close"]);
        Ok(())
    });
}

const STREAM: &[&[u8]] = &[
    b"data: a\n\n",
    b"data: b\r\n\r\n",
    b"data: c\r\r",
    b": 1.00000000 5\ndata: d\n\n",
    b": +\ndata: e\n\n",
    b": +\r\ndata: e\r\n\r\n",
    b": ping\n\n",
    b":\n",
    b": engine_crashed\n\n",
    b"\n",
    b"\r",
    b"\r\n",
    b":",
    b" +",
    b"data: open",
];
const WITHOUT_COMMENTS: &[&[u8]] = &[b"data: a\n\n", b"b\r\n\r\n", b"c\r\r", b"\n", b"\r", b"\r\n", b"x", b" y\n"];

/// The pieces of data that is cut after some of its bytes.
fn pieces(data: &[u8], cuts: &[bool]) -> Vec<Vec<u8>> {
    let mut pieces = vec![Vec::new()];
    for (at, byte) in data.iter().enumerate() {
        if let Some(last) = pieces.last_mut() {
            last.push(*byte);
        }
        if cuts.get(at % cuts.len().max(1)).copied().unwrap_or(false) {
            pieces.push(Vec::new());
        }
    }
    pieces
}

fn cuts() -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(any::<bool>(), 1..40)
}

fn is_end(events: &[u8]) -> bool {
    [b"\n\n".as_slice(), b"\n\r\n", b"\r\r"].iter().any(|end| events.ends_with(end))
}

#[test]
fn an_aligner_loses_no_byte_and_hands_on_whole_events() {
    run((mixed(WITHOUT_COMMENTS, 30), cuts()), |(data, cuts)| {
        let data: Vec<u8> = data.into_iter().filter(|byte| *byte != b':').collect();
        let mut aligner = EventAligner::default();
        let mut out = Vec::new();
        for piece in pieces(&data, &cuts) {
            let events = aligner.feed(&piece).into_owned();
            prop_assert!(events.is_empty() || is_end(&events), "{:?}", events);
            out.extend(events);
        }
        out.extend(aligner.flush());
        prop_assert_eq!(out, data);
        Ok(())
    });
}

#[test]
fn an_aligner_takes_any_bytes_and_holds_few() {
    run((mixed(STREAM, 40), cuts()), |(data, cuts)| {
        let mut aligner = EventAligner::default();
        let mut sent = 0;
        for piece in pieces(&data, &cuts) {
            let events = aligner.feed(&piece);
            let is_alive = events.as_ref() == KEEP_ALIVE;
            // Of more empty lines than two the last ones may come by themselves.
            let is_empty = events.iter().all(|byte| matches!(byte, b'\n' | b'\r'));
            prop_assert!(is_empty || is_alive || is_end(&events), "{:?}", events);
            sent += events.len();
            prop_assert!(aligner.held_bytes() <= data.len());
        }
        // A line that shows life may take the place of a comment, never more than there were bytes.
        prop_assert!(sent + aligner.flush().len() <= data.len() + KEEP_ALIVE.len() * (data.len() + 1));
        Ok(())
    });
}

const BODY: &[&[u8]] = &[
    b"{\"model\":\"m\"}",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u00e9",
    b"\\ud83d\\ude00",
    b"\"n\":",
    b"\"model\":",
    b"\"response_format\":{\"type\":\"json_object\"}",
    b"\"tools\":[{\"strict\":true}],\"tool_choice\":{\"mode\":\"auto\"}",
    b"\"stream_options\":{}",
    b"1e5",
    b"-0",
    b"null",
    b"true",
    b" ",
    b"\n",
];

#[test]
fn fields_of_any_bytes_are_read_or_left() {
    run(mixed(BODY, 30), |body| {
        let Ok(fields) = RequestFields::parse(&body) else { return Ok(()) };
        // What is derived takes any value.
        let _ = (fields.excused(), fields.wants_json(), fields.version(), fields.lacks_usage());
        if fields.lacks_usage() {
            let changed = fields.with_usage(&body);
            // A null that another member of that name follows is left to Python.
            let is_plain = fields.of(Field::StreamOptions).is_empty();
            prop_assert!(!is_plain || RequestFields::parse(&changed).is_ok_and(|again| !again.lacks_usage()));
        }
        Ok(())
    });
}

const CHUNKS: &[&[u8]] = &[
    b"5\r\nhello\r\n",
    b"5\nhello\n",
    b"3;a=\"b\"\r\nabc\r\n",
    b"1 \t;\r\nx\r\n",
    b"00\r\n",
    b"0\r\n\r\n",
    b"0\r\nx-a: b\r\n\r\n",
    b"0\n\n",
    b"fffffffffffffff\r\n",
    b"1000000000000000\r\n",
    b"a",
    b"2",
    b"\r\n",
    b"\n",
    b"\r",
    b";",
    b" ",
    b"-1",
    b"HTTP/1.1 200 OK\r\n",
];

/// What a body in chunks says, by the simplest reading.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// Its data, and how many bytes belong to it.
    Whole(Vec<u8>, usize),
    /// Data of a body that has not ended.
    Part(Vec<u8>),
    Wrong,
}

/// The line that begins there without its end, and where the next one begins. None: it has not ended.
fn line_at(body: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let end = at + body[at..].iter().position(|byte| *byte == b'\n')?;
    let line = &body[at..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

fn size_of(line: &[u8]) -> Option<usize> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let is_size = (1..=15).contains(&digits) && matches!(line.get(digits), None | Some(b';' | b' ' | b'\t'));
    let text = std::str::from_utf8(&line[..digits]).ok()?;
    (is_size && !line.contains(&b'\r')).then(|| usize::from_str_radix(text, 16).unwrap())
}

/// Of a body that is whole. What has not ended is known to be wrong later than a machine knows it.
fn read_chunks(body: &[u8]) -> Read {
    let (mut at, mut data) = (0, Vec::new());
    loop {
        let Some((line, next)) = line_at(body, at) else { return Read::Part(data) };
        let Some(size) = size_of(line) else { return Read::Wrong };
        at = next;
        if size == 0 {
            break;
        }
        let Some(rest) = body.get(at..at + size) else {
            data.extend_from_slice(&body[at..]);
            return Read::Part(data);
        };
        data.extend_from_slice(rest);
        at += size;
        match line_at(body, at) {
            None => return Read::Part(data),
            Some(([], next)) => at = next,
            Some(_) => return Read::Wrong,
        }
    }
    loop {
        let Some((line, next)) = line_at(body, at) else { return Read::Part(data) };
        at = next;
        if line.is_empty() {
            return Read::Whole(data, at);
        }
        if line.first() == Some(&b'\r') {
            return Read::Wrong;
        }
    }
}

#[test]
fn chunks_are_read_as_a_simple_reader_reads_them_in_pieces_of_any_size() {
    run((mixed(CHUNKS, 14), cuts()), |(body, cuts)| {
        let (mut decoder, mut data, mut taken, mut is_wrong) = (ChunkDecoder::default(), Vec::new(), 0, false);
        for piece in pieces(&body, &cuts) {
            match decoder.feed(&piece, &mut data) {
                Ok(size) => {
                    prop_assert!(size == piece.len() || decoder.has_ended());
                    taken += size;
                }
                Err(_) => {
                    is_wrong = true;
                    break;
                }
            }
        }
        prop_assert!(data.len() <= body.len());
        match read_chunks(&body) {
            Read::Whole(whole, size) => {
                prop_assert!(!is_wrong && decoder.has_ended());
                prop_assert_eq!((data, taken), (whole, size));
            }
            Read::Part(part) => prop_assert!(is_wrong || (data == part && !decoder.has_ended() && taken == body.len())),
            Read::Wrong => prop_assert!(is_wrong),
        }
        Ok(())
    });
}

#[test]
fn chunks_that_were_written_are_read_again() {
    run((proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8), cuts()), |(parts, cuts)| {
        let mut body = Vec::new();
        parts.iter().for_each(|part| write_chunk(&mut body, part));
        body.extend_from_slice(b"0\r\n\r\n");
        let (mut decoder, mut data) = (ChunkDecoder::default(), Vec::new());
        for piece in pieces(&body, &cuts) {
            prop_assert!(!decoder.has_ended() || piece.is_empty());
            prop_assert_eq!(decoder.feed(&piece, &mut data), Ok(piece.len()));
        }
        prop_assert_eq!((data, decoder.has_ended()), (parts.concat(), true));
        Ok(())
    });
}
