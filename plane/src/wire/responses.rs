//! Finds responses that are good for certain, so that no one has to look at them. Any other one is Python's, which has
//! the only classifier (`wire/responses.py`).

use super::inference::model_in;
use super::json_values::{decoded, does_nothing, is_null, is_text, text_of, Members};

/// Paths whose responses are no text: embeddings, scores and tokens, and those of classic models.
const WITHOUT_TEXT: [&str; 11] = [
    "/v1/embeddings",
    "/api/v1/embed",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/api/v1/predict",
];
const WITHOUT_MODEL: [&str; 2] = ["/tokenize", "/detokenize"];
/// Of the end of a text, which is looked at for a loop; a text of fewer bytes is none.
const LOOP_BYTES: usize = 1024;
const LOOP_MIN_BYTES: usize = 256;
/// A text with so many different groups of four bytes, in percent of all, compresses less than a loop does.
const VARIED_PERCENT: usize = 75;
/// Places for groups, as bits: two groups in one place count once, which makes a text look less varied.
const PLACES: usize = 1 << 15;

/// Whether the responses of a path are text.
pub fn writes_text(path: &str) -> bool {
    !WITHOUT_TEXT.contains(&path) && model_in(path).is_none()
}

/// Whether a model computes the responses of a path.
pub fn computes(path: &str) -> bool {
    !WITHOUT_MODEL.contains(&path)
}

/// Whether a whole response of status 200 has none of the failures that Python looks for, for certain. No JSON was
/// requested.
pub fn is_good(body: &[u8]) -> bool {
    has_no_failure(body).unwrap_or(false)
}

/// None: it cannot be read, or has a name twice.
fn has_no_failure(body: &[u8]) -> Option<bool> {
    let names = ["choices", "text", "token", "finish_reason", "error", "object", "type", "response", "output"];
    let [choices, text, token, finish, error, object, kind, response, output] = members(body, names)?;
    let is_other = [kind, response, output].iter().any(|value| !value.is_empty());
    if is_other || object == br#""response""# || !does_nothing(error) || error.starts_with(b"{") {
        return Some(false);
    }
    if choices.is_empty() && [text, token, finish].iter().all(|value| !is_text(value)) {
        return Some(true); // in a shape that has no text
    }
    if !is_null(token) || text_of(finish).is_some_and(|reason| reason == "length") {
        return Some(false);
    }
    if choices.is_empty() {
        return Some(is_sound(text));
    }
    if !is_null(text) || !is_null(finish) {
        return Some(false);
    }
    let only = choices.strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii();
    let names = ["text", "message", "delta", "finish_reason"];
    let [text, message, delta, finish] = members(only, names)?;
    if !delta.is_empty() || finish == br#""length""# || finish.contains(&b'\\') {
        return Some(false);
    }
    if message.is_empty() {
        return Some(is_sound(text));
    }
    let names = ["content", "reasoning_content", "refusal", "tool_calls", "function_call"];
    let [content, rest @ ..] = members(message, names)?;
    Some(is_null(text) && rest.iter().all(|value| is_null(value)) && is_sound(content))
}

/// Values of these members of an object; None where one is there twice, a name is escaped, or it is no object.
fn members<'a, const N: usize>(object: &'a [u8], names: [&str; N]) -> Option<[&'a [u8]; N]> {
    let mut values = [&object[..0]; N];
    let mut listed = Members::of(object)?;
    while let Some((name, value)) = listed.next_member().ok()? {
        if name.contains(&b'\\') {
            return None;
        }
        if let Some(at) = names.iter().position(|wanted| wanted.as_bytes() == name) {
            if !values[at].is_empty() {
                return None;
            }
            values[at] = value;
        }
    }
    Some(values)
}

/// Whether a value is a text that is not empty and has no loop at its end, for certain.
fn is_sound(value: &[u8]) -> bool {
    let written = match value {
        [b'"', written @ .., b'"'] if !written.is_empty() => written,
        _ => return false,
    };
    decoded(written).is_some_and(|text| is_varied(text.as_bytes()))
}

/// Whether a text is too short for a loop, or its end has too many different groups of bytes for one.
pub fn is_varied(text: &[u8]) -> bool {
    if text.len() < LOOP_MIN_BYTES {
        return true;
    }
    let end = &text[text.len().saturating_sub(LOOP_BYTES)..];
    let mut seen = [0_u64; PLACES / 64];
    let mut different = 0;
    for group in end.windows(4) {
        let Ok(four) = <[u8; 4]>::try_from(group) else { return false };
        let place = (u32::from_le_bytes(four).wrapping_mul(0x9E37_79B1) >> 17) as usize;
        let Some(word) = seen.get_mut(place / 64) else { return false };
        let bit = 1_u64 << (place % 64);
        different += usize::from(*word & bit == 0);
        *word |= bit;
    }
    different * 100 >= (end.len() - 3) * VARIED_PERCENT
}
