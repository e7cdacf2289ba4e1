//! What Python needs of a request of the fast lane for its line in the access log, and for its spans.

use crate::balancing::pick_endpoint::Pod;
use crate::balancing::prompt_blocks::PromptBlocks;
use crate::ledger::charges::Saved;
use crate::quotas::usage::Usage;

/// One request that ended. Python writes the line and makes the spans, as it does for its own requests.
#[derive(Clone, Debug, Default)]
pub struct LogEntry {
    /// It has a line.
    pub is_logged: bool,
    /// It has spans.
    pub is_traced: bool,
    pub id: String,
    /// The client's own, where it sent a sane one.
    pub request_id: String,
    /// Until it was sent to an endpoint.
    pub waited_s: f64,
    pub owner: String,
    pub address: String,
    pub client_request_id: String,
    pub path: String,
    pub model: String,
    pub revision: String,
    pub upstream: String,
    pub code: u16,
    pub outcome: &'static str,
    /// Unix time of the end.
    pub ended_s: f64,
    pub seconds: f64,
    pub ttft_s: Option<f64>,
    pub bytes_in: usize,
    pub bytes_out: usize,
    /// Tokens of prompt and response, and whether they are an estimate.
    pub tokens: Option<(i64, i64)>,
    pub is_estimated: bool,
    /// Empty without one.
    pub tenant: String,
    pub key: String,
    /// It got a copy of a kept response, and went to no endpoint.
    pub is_hit: bool,
}

/// A request of the fast lane that Python counts again: what came, and what the lane made of it.
#[derive(Clone, Debug, Default)]
pub struct Recount {
    /// Of the client's address.
    pub owner: String,
    /// Head and body, as they came.
    pub request: Vec<u8>,
    /// The body of the response.
    pub response: Vec<u8>,
    pub request_id: String,
    pub route: String,
    /// By which clients name the route.
    pub model: String,
    pub salt: String,
    pub weights: Vec<(String, i64)>,
    pub key: Vec<u8>,
    pub client: String,
    /// The revision that the split chose; empty: none.
    pub own: String,
    pub stratum: &'static str,
    /// The body that the endpoint got.
    pub sent: Vec<u8>,
    pub paid: Option<Paid>,
    pub hit: Option<Hit>,
    /// None where its prompt had no part in the choice of its endpoint.
    pub prompt: Option<RecountedPrompt>,
}

/// A prompt, and the choice of its endpoint.
#[derive(Clone, Debug, Default)]
pub struct RecountedPrompt {
    pub blocks: PromptBlocks,
    pub is_cached: bool,
    /// The endpoints among which it was chosen; none where there was one alone.
    pub pods: Vec<Pod>,
    pub url: String,
}

/// The copy of a kept response that a request got.
#[derive(Clone, Debug, Default)]
pub struct Hit {
    /// By which it was found.
    pub digest: Vec<u8>,
    /// Of the response.
    pub revision: String,
    /// The one that the request would have gone to.
    pub chosen: String,
    pub saved: Saved,
    /// On Python's clock.
    pub found_s: f64,
}

/// What a tenant paid for a request.
#[derive(Clone, Debug, Default)]
pub struct Paid {
    pub tenant: String,
    pub key: String,
    /// The publication of tenants by which it was found.
    pub table: u64,
    /// As the head of the response has them.
    pub prompt_tokens: Option<i64>,
    /// Input and output tokens that were reserved.
    pub reserved: (i64, i64),
    pub usage: Usage,
    pub is_estimated: bool,
    pub cost_nano: i64,
}
