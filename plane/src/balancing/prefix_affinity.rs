//! What is known of the prompts at each endpoint: blocks that it has seen, and bytes that it has yet to compute. Both lanes
//! have one of it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use super::prefix_index::{Depths, PrefixIndex};
use super::prompt_blocks::{bytes_of, BlockHash, PromptBlocks};
use crate::handover::locked;
use crate::wire::json_values::float_of;

/// Of the text that a token stands for.
const BYTES_PER_TOKEN: f64 = 4.0;
/// What a pod reports with a response counts for so long.
const REPORT_S: f64 = 2.0;
/// A report of more than this is no report: it would keep all requests from an endpoint.
const MOST_WAITING_BYTES: f64 = (1 << 30) as f64;
const MAX_HEADER_BYTES: usize = 2048;
const MAX_METRICS: usize = 64;
const METRICS_PREFIX: &str = "named_metrics.";

/// Names of the header in which a pod reports its load, and of that which requests it.
pub const LOAD: &str = "endpoint-load-metrics";
pub const LOAD_FORMAT: &str = "Endpoint-Load-Metrics-Format";
pub const TEXT: &[u8] = b"TEXT";

/// Bytes of prompts that wait at an endpoint, of all gateways, as its pod reported it at `at_s`.
#[derive(Clone, Copy, Debug)]
struct Report {
    waiting_bytes: i64,
    at_s: f64,
}

#[derive(Debug)]
struct State {
    index: PrefixIndex,
    /// Of endpoints where some wait.
    waiting: HashMap<Arc<str>, i64>,
    reports: HashMap<String, Report>,
    /// Of a prompt that its endpoint had to compute, a moving mean.
    usual_bytes: f64,
}

/// Prompts of the routes with prefix affinity.
#[derive(Debug)]
pub struct PrefixRouting(Mutex<State>);

impl PrefixRouting {
    /// `max_blocks`: remembered of all endpoints; 0: none.
    pub fn new(max_blocks: usize) -> Self {
        let index = PrefixIndex::new(max_blocks);
        PrefixRouting(Mutex::new(State { index, waiting: HashMap::new(), reports: HashMap::new(), usual_bytes: 0.0 }))
    }

    /// Blocks that are remembered.
    pub fn blocks(&self) -> usize {
        locked(&self.0).index.len()
    }

    /// Adopts the endpoints that there are: those that are gone are forgotten.
    pub fn follow(&self, urls: HashSet<String>) {
        let mut state = locked(&self.0);
        state.reports.retain(|url, _| urls.contains(url));
        state.index.follow(urls);
    }

    /// An endpoint did not answer: its engine may have started again, with an empty cache.
    pub fn forget(&self, url: &str) {
        let mut state = locked(&self.0);
        state.index.forget(url);
        state.reports.remove(url);
    }

    /// An endpoint gets a prompt.
    pub fn begin(self: &Arc<Self>, prompt: &PromptBlocks, url: &str) -> Prefill {
        let mut state = locked(&self.0);
        let depths = state.index.matched(&prompt.hashes);
        let depth = depths.map_or(0, |depths| state.index.depth_at(&depths, url));
        let missing = prompt.size.saturating_sub(bytes_of(depth));
        state.usual_bytes += (missing as f64 - state.usual_bytes) / 32.0;
        state.index.add(url, &prompt.owner, &prompt.hashes);
        let url: Arc<str> = url.into();
        if missing > 0 {
            *state.waiting.entry(url.clone()).or_default() += missing as i64;
        }
        drop(state);
        Prefill { routing: self.clone(), url, prompt_bytes: prompt.size, size: missing, left: missing as i64 }
    }

    /// A pod reported its load with a response, in this header. vLLM counts requests and not tokens.
    pub fn reported(&self, url: &str, header: &[u8], now_s: f64) {
        let (tokens, requests) = waiting_of(header);
        let mut state = locked(&self.0);
        let size =
            tokens.map_or_else(|| requests.unwrap_or(0.0) * state.usual_bytes, |tokens| tokens * BYTES_PER_TOKEN);
        if size <= MOST_WAITING_BYTES && state.index.has(url) {
            let report = Report { waiting_bytes: size.round_ties_even() as i64, at_s: now_s };
            state.reports.insert(url.to_owned(), report);
        }
    }

    /// What is known of a prompt now. Nothing else is noted meanwhile.
    pub fn known(&self, prompt: &[BlockHash], now_s: f64) -> Known<'_> {
        let state = locked(&self.0);
        let depths = state.index.matched(prompt);
        Known { state, depths, since_s: now_s - REPORT_S }
    }
}

/// What is known of one prompt.
#[derive(Debug)]
pub struct Known<'a> {
    state: MutexGuard<'a, State>,
    /// None: no endpoint has seen anything of it.
    depths: Option<Depths>,
    /// Reports from then on count.
    since_s: f64,
}

impl Known<'_> {
    /// Bytes of the prompt that an endpoint's cache has.
    pub fn matched_at(&self, url: &str) -> u64 {
        self.depths.as_ref().map_or(0, |depths| bytes_of(self.state.index.depth_at(depths, url)) as u64)
    }

    /// Bytes of other prompts that an endpoint has yet to compute: what this gateway has sent there, or what its pod reports
    /// of all gateways, if that is more.
    pub fn waiting_at(&self, url: &str) -> i64 {
        let sent = self.state.waiting.get(url).copied().unwrap_or(0);
        let report = self.state.reports.get(url).filter(|report| report.at_s >= self.since_s);
        sent.max(report.map_or(0, |report| report.waiting_bytes))
    }

    /// Both by URL; zeros are left out.
    pub fn all(&self) -> (HashMap<String, u64>, HashMap<String, i64>) {
        let listed = self.depths.iter().flat_map(|depths| self.state.index.listed(depths));
        let matched = listed.map(|(url, depth)| (url.to_owned(), bytes_of(depth) as u64)).collect();
        let urls = self.state.waiting.keys().map(|url| &**url).chain(self.state.reports.keys().map(String::as_str));
        let waiting = urls.map(|url| (url.to_owned(), self.waiting_at(url))).filter(|(_, size)| *size > 0).collect();
        (matched, waiting)
    }
}

/// A prompt that an endpoint computes. What it lacked of it waits there until `end`, or until this is dropped.
#[derive(Debug)]
pub struct Prefill {
    routing: Arc<PrefixRouting>,
    url: Arc<str>,
    /// Of the whole prompt.
    pub prompt_bytes: usize,
    /// What the endpoint had not seen of it.
    pub size: usize,
    left: i64,
}

impl Prefill {
    /// Whether the endpoint had most of the prompt in its cache.
    pub fn was_cached(&self) -> bool {
        2 * self.prompt_bytes.saturating_sub(self.size) >= self.prompt_bytes
    }

    pub fn end(&mut self) {
        let left = std::mem::take(&mut self.left);
        if left == 0 {
            return;
        }
        let waiting = &mut locked(&self.routing.0).waiting;
        if let Some(size) = waiting.get_mut(&*self.url) {
            *size -= left;
            if *size <= 0 {
                waiting.remove(&*self.url);
            }
        }
    }
}

impl Drop for Prefill {
    fn drop(&mut self) {
        self.end();
    }
}

/// Tokens of prompts, and requests, that wait at a pod by a report of its load: a workload wrote it, so it may be anything.
fn waiting_of(header: &[u8]) -> (Option<f64>, Option<f64>) {
    let mut waiting = (None, None);
    let Some(header) = std::str::from_utf8(header).ok().filter(|header| header.len() <= MAX_HEADER_BYTES) else {
        return waiting;
    };
    let (form, listed) = header.split_once(' ').unwrap_or((header, ""));
    if !form.as_bytes().eq_ignore_ascii_case(TEXT) {
        return waiting;
    }
    for item in listed.split(',').take(MAX_METRICS) {
        let (name, text) = item.trim().split_once('=').unwrap_or((item, ""));
        let value = float_of(text.trim().as_bytes()).filter(|value| value.is_finite() && *value >= 0.0);
        match name.strip_prefix(METRICS_PREFIX) {
            Some("waiting_prompt_tokens") if value.is_some() => waiting.0 = value,
            Some("num_requests_waiting") if value.is_some() => waiting.1 = value,
            _ => {}
        }
    }
    waiting
}
