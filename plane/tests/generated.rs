//! Generated inputs for what reads bytes of strangers: the rule of the subset, the aligner, and the fields of a body.
//!
//! An ordinary run tries a few thousand inputs, the same each time. With `PLANE_FUZZ_S` each target runs for so many
//! seconds, with other inputs each time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

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
