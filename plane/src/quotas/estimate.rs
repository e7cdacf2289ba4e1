//! What a request may cost, before its server counted it.

use crate::wire::json_values::{count_items, integer_of, is_null, is_text, lenient_integer_of};
use crate::wire::request_fields::{Field, RequestFields};

/// Paths of rerankers and classifiers of texts.
pub const TEXT_PATHS: [&str; 6] = ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/classify"];
const BYTES_PER_TOKEN: i64 = 4;
const MAX_REPEATED_BYTES: usize = 16 << 20;
const MAX_TOKENS: i128 = 1 << 31;

/// Tokens that a request may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    pub input_tokens: i64,
    pub output_tokens: i64,
}

/// The tokens that a request reserves. `default_output`: output tokens of a response at most.
///
/// `computes`: a model runs; else no tokens are reserved. `writes_text`: there are output tokens.
pub fn estimate(
    fields: &RequestFields<'_>,
    path: &str,
    body_bytes: usize,
    default_output: i64,
    computes: bool,
    writes_text: bool,
) -> Estimate {
    if !computes {
        return Estimate::default();
    }
    let repeated = if TEXT_PATHS.contains(&path) { repeated_bytes(fields) } else { 0 };
    let bytes = i64::try_from(body_bytes.saturating_add(repeated)).unwrap_or(i64::MAX);
    let input_tokens = bytes / BYTES_PER_TOKEN + i64::from(bytes % BYTES_PER_TOKEN != 0);
    if !writes_text {
        return Estimate { input_tokens, output_tokens: 0 };
    }
    let default_output = i128::from(default_output);
    let each = output_limit(fields, path).map_or(default_output, |limit| limit.min(default_output));
    let output_tokens = each.saturating_mul(responses(fields)).min(MAX_TOKENS);
    Estimate { input_tokens, output_tokens: output_tokens as i64 }
}

/// Most tokens of one response, as the request itself sets it; None without a number of tokens.
///
/// Of a chat's two limits the larger one: servers take either one first.
pub fn output_limit(fields: &RequestFields<'_>, path: &str) -> Option<i128> {
    let limits: &[Field] = match path {
        "/v1/responses" => &[Field::MaxOutputTokens],
        "/v1/chat/completions" => &[Field::MaxTokens, Field::MaxCompletionTokens],
        _ => &[Field::MaxTokens],
    };
    limits.iter().filter_map(|limit| integer_of(fields.of(*limit))).filter(|count| *count >= 0).max()
}

/// How many responses a model writes: to each prompt `n`, or `best_of` of which `n` are returned.
pub fn responses(fields: &RequestFields<'_>) -> i128 {
    let counts = [Field::N, Field::BestOf].map(|field| lenient_integer_of(fields.of(field)).unwrap_or(1));
    let texts = [Field::Prompt, Field::PromptEmbeds].map(|field| fields.of(field));
    let prompts: usize = texts.iter().filter(|value| !is_null(value)).map(|value| count_items(value)).sum();
    let each = counts.into_iter().fold(1, i128::max);
    each.saturating_mul(i128::try_from(prompts.max(1)).unwrap_or(i128::MAX))
}

/// Bytes of a query beyond the one in the body: the model computes it with each document, and usage counts it so.
pub fn repeated_bytes(fields: &RequestFields<'_>) -> usize {
    let ranks = !fields.of(Field::Query).is_empty();
    let [query, others] =
        if ranks { [Field::Query, Field::Documents] } else { [Field::Text1, Field::Text2] }.map(|one| fields.of(one));
    if !is_text(query) || others.is_empty() {
        return 0;
    }
    count_items(others).saturating_sub(1).saturating_mul(query.len()).min(MAX_REPEATED_BYTES)
}
