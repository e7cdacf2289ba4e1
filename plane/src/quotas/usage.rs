//! Tokens that a response reports, found in its bytes.
//!
//! What Python might read differently is NotSure: then Python counts the same bytes.

use memchr::memmem;

use crate::wire::json_values::{decoded, is_null, Members, NotSure};
use crate::wire::members::is_space;

/// A usage object is short; a longer one is not read.
pub const MAX_USAGE_BYTES: usize = 4096;
/// Most bytes of a body that is read as a whole.
pub const MAX_RESPONSE_BYTES: usize = 1 << 20;
const FINAL: [&str; 3] = ["response.completed", "response.incomplete", "response.failed"];
/// A larger number is read as this one.
const MAX_TOKENS: i64 = 1 << 40;
/// Python reads no longer whole number.
const MAX_DIGITS: usize = 4000;
const KEY: &[u8] = b"\"usage\"";
const NO_CHOICES: [&[u8]; 2] = [b"\"choices\":[]", b"\"choices\": []"];

/// `cached_tokens` are part of `input_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cached_tokens: i64,
}

/// What was found: a usage, none, or that Python has to look.
pub type Found = Result<Option<Usage>, NotSure>;

/// The last usage object in these bytes: of a whole response, the end of one, or events of a stream.
///
/// # Errors
/// NotSure: the object is none that servers write.
pub fn last_usage(data: &[u8]) -> Found {
    let finder = memmem::FinderRev::new(KEY);
    let mut end = data.len();
    while let Some(at) = data.get(..end).and_then(|before| finder.rfind(before)) {
        if let Some(begin) = object_behind(data, at + KEY.len()) {
            return read_usage(object_at(data, begin));
        }
        end = at;
    }
    Ok(None)
}

/// Where the object begins whose colon follows at `at`; None where none does.
fn object_behind(data: &[u8], at: usize) -> Option<usize> {
    let colon = skip_space(data, at);
    let begin = (data.get(colon) == Some(&b':')).then(|| skip_space(data, colon + 1))?;
    (data.get(begin) == Some(&b'{')).then_some(begin)
}

fn skip_space(data: &[u8], at: usize) -> usize {
    at + data.get(at..).unwrap_or_default().iter().take_while(|byte| is_space(**byte)).count()
}

/// The usage object that begins at `begin`, or empty if it is too long. It has no text, so braces end it.
fn object_at(data: &[u8], begin: usize) -> &[u8] {
    let end = data.len().min(begin.saturating_add(MAX_USAGE_BYTES));
    let object = data.get(begin..end).unwrap_or_default();
    let mut depth = 0_u32;
    for (at, byte) in object.iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return &object[..=at],
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    b""
}

/// The usage in a whole response of the Responses API; None for a part of one.
///
/// # Errors
/// NotSure: the response is no UTF-8, or too deep.
pub fn usage_of_response(body: &[u8]) -> Found {
    let Some(members) = members_of(body, &["usage"])? else { return Ok(None) };
    members.first().map_or(Ok(None), |value| read_usage(value))
}

/// The usage in the event that ends a stream of the Responses API; None if it is not among these whole events.
///
/// # Errors
/// NotSure: the last event that could have one is no UTF-8, or too deep.
pub fn usage_of_final_event(events: &[u8]) -> Found {
    if memmem::find(events, KEY).is_none() {
        return Ok(None);
    }
    for line in events.rsplit(|byte| matches!(byte, b'\n' | b'\r')) {
        let Some(data) = line.strip_prefix(b"data:") else { continue };
        if let Some(usage) = usage_of_event(data)? {
            return Ok(usage);
        }
    }
    Ok(None)
}

/// Of a final event with a usage object what that says; None for every other one.
fn usage_of_event(data: &[u8]) -> Result<Option<Option<Usage>>, NotSure> {
    let Some(members) = members_of(data, &["type", "response"])? else { return Ok(None) };
    let [kind, response] = members.as_slice() else { return Ok(None) };
    if !kind.is_empty() && kind.first() != Some(&b'"') {
        return Ok(None);
    }
    let kind = kind.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or_default();
    let kind = decoded(kind).ok_or(NotSure("utf8"))?;
    if is_null(response) {
        return Ok(None);
    }
    let Some(inner) = members_of(response, &["usage"])? else { return Ok(None) };
    let usage = inner.first().copied().unwrap_or_default();
    // One that Python cannot read makes the whole event unreadable, whatever its type.
    let Some(counted) = counted(usage)? else { return Ok(None) };
    Ok((FINAL.contains(&kind.as_ref()) && !is_null(usage)).then_some(counted))
}

/// The values of these members of a whole text of JSON; None where it is no object in JSON.
fn members_of<'a>(text: &'a [u8], names: &[&str]) -> Result<Option<Vec<&'a [u8]>>, NotSure> {
    if std::str::from_utf8(text).is_err() {
        return Err(NotSure("utf8"));
    }
    let Some(mut members) = Members::of(text) else { return Ok(None) };
    let mut found = vec![&text[..0]; names.len()];
    loop {
        let (name, value) = match members.next_member() {
            Ok(Some(member)) => member,
            Ok(None) => return Ok(Some(found)),
            Err(NotSure("depth")) => return Err(NotSure("depth")),
            Err(_) => return Ok(None),
        };
        if name.contains(&b'\\') {
            return Err(NotSure("escaped_name"));
        }
        let Some(at) = names.iter().position(|wanted| wanted.as_bytes() == name) else { continue };
        if !found[at].is_empty() {
            return Err(NotSure("repeated_name"));
        }
        found[at] = value;
    }
}

fn read_usage(object: &[u8]) -> Found {
    Ok(counted(object)?.flatten())
}

/// What a usage object says, null or an absent one nothing; None where Python cannot read it.
fn counted(object: &[u8]) -> Result<Option<Option<Usage>>, NotSure> {
    if is_null(object) {
        return Ok(Some(None));
    }
    let names = [
        "prompt_tokens",
        "completion_tokens",
        "input_tokens",
        "output_tokens",
        "prompt_tokens_details",
        "input_tokens_details",
    ];
    let Some(members) = members_of(object, &names)? else { return Ok(None) };
    let &[prompt, completion, input, output, of_prompt, of_input] = members.as_slice() else { return Ok(None) };
    let mut counts = [None; 4];
    for (count, value) in counts.iter_mut().zip([prompt, input, completion, output]) {
        let Some(read) = count_of(value)? else { return Ok(None) };
        *count = read;
    }
    let (Some(of_prompt), Some(of_input)) = (cached_in(of_prompt)?, cached_in(of_input)?) else { return Ok(None) };
    let [prompt, input, completion, output] = counts;
    let (read, written) = (prompt.or(input), completion.or(output));
    if read.is_none() && written.is_none() {
        return Ok(Some(None));
    }
    let (read, written) = (read.unwrap_or(0), written.unwrap_or(0));
    let cached = of_prompt.or(of_input).flatten().unwrap_or(0).min(read);
    Ok(Some(Some(Usage { input_tokens: read, output_tokens: written, cached_tokens: cached })))
}

/// `cached_tokens` of details: None in the middle without details. None where Python cannot read them.
#[allow(clippy::option_option)]
fn cached_in(details: &[u8]) -> Result<Option<Option<Option<i64>>>, NotSure> {
    if is_null(details) {
        return Ok(Some(None));
    }
    let Some(members) = members_of(details, &["cached_tokens"])? else { return Ok(None) };
    let cached = members.first().copied().unwrap_or_default();
    Ok(count_of(cached)?.map(Some))
}

/// A number of tokens, None in the middle for another value. None where Python cannot read it.
#[allow(clippy::option_option)]
fn count_of(value: &[u8]) -> Result<Option<Option<i64>>, NotSure> {
    match value.first() {
        Some(b'{' | b'[') => Err(NotSure("usage")),
        Some(b'-' | b'0'..=b'9') => number_of(value),
        _ => Ok(Some(None)),
    }
}

#[allow(clippy::option_option)]
fn number_of(value: &[u8]) -> Result<Option<Option<i64>>, NotSure> {
    if value.len() > MAX_DIGITS {
        return Err(NotSure("number"));
    }
    let text = std::str::from_utf8(value).map_err(|_| NotSure("utf8"))?;
    let is_whole = value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
    if is_whole {
        let is_negative = value.first() == Some(&b'-') && value.iter().any(|byte| matches!(byte, b'1'..=b'9'));
        let count = text.parse::<i64>().unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
        return Ok(Some((!is_negative).then_some(count)));
    }
    let number: f64 = text.parse().map_err(|_| NotSure("number"))?;
    if number.is_infinite() {
        return Ok(None);
    }
    Ok(Some((number >= 0.0).then_some(number.min(MAX_TOKENS as f64) as i64)))
}

/// Tokens of a stream up to the last event that its server marked with `: <position>.<check> <tokens>`, or None.
pub fn marked_position(events: &[u8]) -> Option<i64> {
    let last = memmem::rfind(events, b"\n\n: ").map(|at| at + 2);
    let begin = last.or(events.starts_with(b": ").then_some(0))? + 2;
    let mark = events.get(begin..events.len().min(begin + 10))?;
    let dot = mark.iter().position(|byte| *byte == b'.')?;
    if dot == 0 || !mark[..dot].iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(&mark[..dot]).ok()?.parse().ok()
}

/// Events with data: about one for each token, where a server neither marks them nor reports its usage.
pub fn count_events(events: &[u8]) -> i64 {
    let found = memmem::find_iter(events, b"\ndata:").count() + usize::from(events.starts_with(b"data:"));
    let done = memmem::find_iter(events, b"data: [DONE]").count();
    found as i64 - done as i64
}

/// Whole events without those that hold only the usage, which the client did not request; None: all of them.
pub fn without_usage_event(events: &[u8]) -> Option<Vec<u8>> {
    if !has_no_choices(events) {
        return None;
    }
    let mut kept = Vec::with_capacity(events.len());
    let mut is_first = true;
    for event in split_events(events).filter(|event| !is_only_usage(event)) {
        if !is_first {
            kept.extend_from_slice(b"\n\n");
        }
        is_first = false;
        kept.extend_from_slice(event);
    }
    Some(kept)
}

fn split_events(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(events);
    std::iter::from_fn(move || {
        let all = rest?;
        match memmem::find(all, b"\n\n") {
            Some(at) => {
                rest = all.get(at + 2..);
                all.get(..at)
            }
            None => rest.take(),
        }
    })
}

fn has_no_choices(event: &[u8]) -> bool {
    NO_CHOICES.iter().any(|choices| memmem::find(event, choices).is_some())
}

fn is_only_usage(event: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = event.get(at..).and_then(|rest| memmem::find(rest, KEY)) {
        if object_behind(event, at + found + KEY.len()).is_some() {
            return has_no_choices(event);
        }
        at += found + 1; // two names may share a quote
    }
    false
}
