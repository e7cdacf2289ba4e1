//! Nanoseconds per call of each twin, one line each: `name<TAB>ns`. `tests/plane/measure_twins.py` has Python's beside
//! them, with the same inputs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use slipway_plane_native::balancing::pick_endpoint::{LeastLoaded, PickEndpoint, Pod};
use slipway_plane_native::identity::api_keys::{checksum, key_id, Pepper};
use slipway_plane_native::quotas::bounds::UsageBound;
use slipway_plane_native::quotas::estimate::estimate;
use slipway_plane_native::quotas::meter::{Beginning, Meter};
use slipway_plane_native::quotas::tenant::{Limits, TenantQuota};
use slipway_plane_native::quotas::usage::last_usage;
use slipway_plane_native::routing::split::choose;
use slipway_plane_native::upstream::tenant_proof::{SigningKey, TenantSigner};
use slipway_plane_native::wire::headers::{to_client, to_upstream, RequestHeaders};
use slipway_plane_native::wire::request_fields::{sticky_key, RequestFields, Sources};
use slipway_plane_native::wire::resume::StreamProgress;
use slipway_plane_native::wire::sse::EventAligner;
use slipway_plane_native::wire::subset::plain_head;

const ROUNDS: usize = 5;
const CALLS: u32 = 20_000;
const HEAD: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: application/json\r\n\
    Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n\
    User-Agent: OpenAI/Python 2.8.1\r\nX-Stainless-Lang: python\r\nX-Stainless-Async: false\r\n\
    X-Stainless-Retry-Count: 0\r\nAuthorization: Bearer slw_bench1_x\r\nContent-Length: 242\r\n\r\n";
const ANSWER: &[u8] =
    b"{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\
    \"message\":{\"role\":\"assistant\",\"content\":\"Hello! How can I help you today?\"},\"finish_reason\":\"stop\"}],\
    \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":9,\"total_tokens\":18}}";
const EVENT: &[u8] =
    b": 12.0a1b2c3d 1234\ndata: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\
    \"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" hello\"},\"finish_reason\":null}]}\n\n";

/// The fastest of some rounds, each of many calls.
fn measure(name: &str, mut call: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        best = best.min(began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    println!("{name}\t{best:.0}");
}

fn body() -> Vec<u8> {
    let words = "hello ".repeat(20);
    format!("{{\"model\":\"m\",\"max_tokens\":64,\"messages\":[{{\"role\":\"user\",\"content\":\"{words}\"}}],\"user\":\"u1\"}}")
        .into_bytes()
}

fn main() {
    let body = body();
    let Ok(fields) = RequestFields::parse(&body) else { return };
    let mut lines = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut lines);
    if request.parse(HEAD).is_err() {
        return;
    }
    wire(&body, &fields, &request);
    policy(&body, &fields);
    streams();
}

fn wire(body: &[u8], fields: &RequestFields<'_>, request: &httparse::Request<'_, '_>) {
    let sources = Sources { session: true, user: true, key: true };
    let about = RequestHeaders {
        request_id: "r1",
        tenant: "t",
        forwarded: &[],
        priority_limit: Some(0),
        weight: 1,
        weight_signature: "",
    };
    let mut out = Vec::new();
    measure("fields", || {
        let _ = black_box(RequestFields::parse(black_box(body)));
    });
    measure("head", || {
        let mut lines = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut lines);
        let _ = black_box(request.parse(black_box(HEAD)));
        let _ = black_box(plain_head(HEAD, &request, |path| path == "/v1/chat/completions", 65_536));
    });
    measure("to_upstream", || {
        out.clear();
        let _ = to_upstream(&mut out, black_box(request.headers), &about);
    });
    measure("to_client", || {
        out.clear();
        let _ = to_client(&mut out, black_box(request.headers), "r1", "v1", &[]);
    });
    measure("sticky_key", || {
        black_box(sticky_key(black_box(request.headers), fields, "r1", sources, "key:t/k"));
    });
}

fn policy(body: &[u8], fields: &RequestFields<'_>) {
    let begin = format!("slw_bench1_{}", "0".repeat(43));
    let key = format!("{begin}_{}", String::from_utf8_lossy(&checksum(&begin)));
    let Some(pepper) = Pepper::new(&[7; 32]) else { return };
    let entries = [pepper.hash(&key)];
    measure("key", || {
        black_box(key_id(black_box(&key)));
        black_box(pepper.find(black_box(&key), &entries));
    });
    measure("choose", || {
        black_box(choose([10, 90], b"1", black_box(b"user:u1")));
    });
    let pod = |n: u64| Pod { url: format!("http://10.0.0.{n}:8000"), in_flight: n % 2, ..Pod::default() };
    let pods: Vec<Pod> = (0..3).map(pod).collect();
    measure("pick", || {
        black_box(LeastLoaded.pick(black_box(&pods), b"user:u1"));
    });
    measure("estimate", || {
        black_box(estimate(black_box(fields), "/v1/chat/completions", body.len(), 512, true, true));
    });
    let plenty = 1_000_000_000;
    let mut quota = TenantQuota::new(Limits { per_minute: [plenty; 3], concurrency: 0, burst_s: 60.0, parts: 1 });
    let mut now_s = 0.0;
    measure("quota", || {
        now_s += 1e-5;
        if let Ok(mut reservation) = quota.reserve([1, 60, 64], now_s) {
            black_box(quota.headers(now_s));
            quota.settle(&mut reservation, [Some(1), Some(9), Some(9)], now_s);
        }
    });
    measure("last_usage", || {
        let _ = black_box(last_usage(black_box(ANSWER)));
    });
    let reserved = estimate(fields, "/v1/chat/completions", body.len(), 512, true, true);
    let body = Arc::new(body.to_vec());
    measure("meter", || {
        let bound = UsageBound::new(Arc::clone(&body), fields, Some(64), 0, false);
        let mut meter = Meter::new(reserved, bound, 0, false, false);
        meter.begin(&Beginning::default());
        meter.add_body(black_box(ANSWER));
        let _ = black_box(meter.used(false));
    });
    let key = SigningKey { id: "k1".to_owned(), master: vec![7; 32] };
    let mut signer = TenantSigner::new(key.clone());
    measure("proof", || {
        black_box(key.proof("t", "ns/a", 1));
    });
    measure("proof_kept", || {
        black_box(signer.sign("t", "ns/a", "", 60.0));
    });
}

fn streams() {
    let mut aligner = EventAligner::default();
    measure("aligner", || {
        black_box(aligner.feed(black_box(EVENT)));
    });
    let stream = format!("a-b-{}", "0".repeat(32));
    let marked = [httparse::Header { name: "X-Slipway-Stream", value: stream.as_bytes() }];
    let mut progress = StreamProgress::start(&marked, "v1", "00ff", Vec::new());
    let mut out = Vec::new();
    measure("ids", || {
        out.clear();
        if let Some(progress) = progress.as_mut() {
            progress.add_ids(black_box(EVENT), &mut out);
        }
    });
    let mut meter = Meter::new(Default::default(), UsageBound::without_body(), 0, false, false);
    meter.begin(&Beginning::default());
    measure("meter_event", || {
        black_box(meter.add_events(black_box(EVENT)));
    });
}
