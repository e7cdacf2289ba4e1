//! The most tokens that a request can cause, whatever its server reports.

use std::sync::Arc;

use memchr::{memchr2_iter, memchr_iter};

use super::usage::Usage;
use crate::wire::members::is_space;
use crate::wire::request_fields::{Field, RequestFields};

const ADDED_TOKENS: i64 = 8192;
const TEMPLATE_TOKENS: i64 = 128;
const REFERENCE_TOKENS: i64 = 1 << 17;
const HIDDEN_TOKENS: i64 = 1 << 16;
const COUNTED_BYTES: usize = 256 << 10;
const MAX_TIMES: i64 = 1 << 16;
const MAX_DIGITS: usize = 6;

/// Bounds the usage of one request. No token is shorter than a byte, so the body bounds its prompt and the response
/// what was generated; beyond that there is room for what servers add and hide.
#[derive(Clone, Debug)]
pub struct UsageBound {
    body: Arc<Vec<u8>>,
    limit: Option<i64>,
    repeated_bytes: i64,
    refers: bool,
    /// How many texts the request generates at most.
    times: i64,
    /// 0 until it is counted, which is only where a report is above what the bytes alone allow.
    input: i64,
}

impl UsageBound {
    /// `fields`: of a body, which may have had another model name. `output_limit`: the request's own, None without one.
    ///
    /// `repeated_bytes`: of a text that the model computes several times. `refers`: the server may know earlier turns.
    pub fn new(
        body: Arc<Vec<u8>>,
        fields: &RequestFields<'_>,
        output_limit: Option<i128>,
        repeated_bytes: usize,
        refers: bool,
    ) -> Self {
        let limit = output_limit.filter(|limit| *limit > 0).map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
        let each = count(fields.of(Field::N)).max(count(fields.of(Field::BestOf)));
        let times = each.saturating_mul(prompts(fields.of(Field::Prompt))).min(MAX_TIMES);
        let repeated_bytes = i64::try_from(repeated_bytes).unwrap_or(i64::MAX);
        UsageBound { body, limit, repeated_bytes, refers, times, input: 0 }
    }

    /// Of a request without a body.
    pub fn without_body() -> Self {
        UsageBound { body: Arc::default(), limit: None, repeated_bytes: 0, refers: false, times: 1, input: 0 }
    }

    /// The part of a usage that the request can have caused. `relayed_bytes`: of the response so far.
    pub fn clamp(&mut self, usage: Usage, relayed_bytes: i64) -> Usage {
        if self.is_within(&usage, relayed_bytes) {
            return usage;
        }
        let input_tokens = usage.input_tokens.min(self.input_tokens());
        let output_tokens = usage.output_tokens.min(self.output_tokens(relayed_bytes));
        if (input_tokens, output_tokens) == (usage.input_tokens, usage.output_tokens) {
            return usage;
        }
        Usage { input_tokens, output_tokens, cached_tokens: usage.cached_tokens.min(input_tokens) }
    }

    /// Whether the bytes alone allow a usage.
    pub fn is_within(&self, usage: &Usage, relayed_bytes: i64) -> bool {
        let shown = self.limit.unwrap_or(1 << 30).min(relayed_bytes);
        usage.input_tokens <= self.body.len() as i64 && usage.output_tokens <= shown
    }

    fn input_tokens(&mut self) -> i64 {
        if self.input == 0 {
            let begin = &self.body[..self.body.len().min(COUNTED_BYTES)];
            let texts = (memchr_iter(b'"', begin).count() / 2) as i64;
            let references = count_references(begin) + i64::from(self.refers);
            let added = ADDED_TOKENS + TEMPLATE_TOKENS * texts + REFERENCE_TOKENS * references;
            self.input = (self.body.len() as i64).saturating_add(self.repeated_bytes).saturating_add(added);
        }
        self.input
    }

    fn output_tokens(&self, relayed_bytes: i64) -> i64 {
        let shown = relayed_bytes.saturating_add(HIDDEN_TOKENS * self.times);
        self.limit.map_or(shown, |limit| shown.min(limit.saturating_mul(self.times)))
    }
}

/// Prompts in a list of texts, or of lists of tokens, at most: quotation marks in a text count too.
fn prompts(prompt: &[u8]) -> i64 {
    if prompt.first() != Some(&b'[') {
        return 1;
    }
    let begin = prompt.get(1..prompt.len().min(64)).unwrap_or_default();
    let found = match begin.iter().find(|byte| !is_space(**byte)) {
        Some(b'"') => memchr_iter(b'"', prompt).count() / 2,
        Some(b'[') => memchr_iter(b'[', prompt).count() - 1,
        _ => 1,
    };
    found.max(1) as i64
}

fn count(value: &[u8]) -> i64 {
    if value.len() > MAX_DIGITS || !value.iter().all(u8::is_ascii_digit) {
        return 1;
    }
    std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).unwrap_or(1).max(1)
}

/// Content that the body only refers to, by names of members; and escapes of letters, which may hide such a name.
fn count_references(body: &[u8]) -> i64 {
    let mut count = 0;
    let mut behind = 0;
    for at in memchr2_iter(b'"', b'\\', body) {
        if at < behind {
            continue;
        }
        let rest = &body[at..];
        if let Some(size) = escaped_letter_size(rest).or_else(|| reference_size(rest)) {
            count += 1;
            behind = at + size;
        }
    }
    count
}

fn escaped_letter_size(rest: &[u8]) -> Option<usize> {
    let digit = rest.strip_prefix(br"\u00")?.first()?;
    matches!(digit, b'4'..=b'7').then_some(6 - 1)
}

/// The size of a name such as `"input_image"` with its colon.
fn reference_size(rest: &[u8]) -> Option<usize> {
    let name = rest.strip_prefix(b"\"")?;
    let name = name.strip_prefix(b"input_").unwrap_or(name);
    let kinds: [&[u8]; 4] = [b"image", b"video", b"audio", b"file"];
    let more = kinds.iter().find_map(|kind| name.strip_prefix(*kind))?;
    let letters = more.iter().take_while(|byte| matches!(byte, b'a'..=b'z' | b'_')).count();
    let behind = more.get(letters..)?.strip_prefix(b"\"")?;
    let spaces = behind.iter().take_while(|byte| is_space(**byte)).count();
    let end = behind.get(spaces..)?.strip_prefix(b":")?;
    Some(rest.len() - end.len())
}
