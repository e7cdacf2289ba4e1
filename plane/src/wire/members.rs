//! Sets members of a JSON object in its bytes: nothing else of it is read or written again.
//!
//! Of members with one name the last counts. So a member at the end takes the place of all others of its name.

use memchr::{memmem, memrchr};

/// An object in which `name` has this value. `body` is an object that was read.
///
/// `before`: the bytes of the value that counts now; empty without one. A name that is there once, and as it is usually
/// written, keeps its place: some servers refuse a name that is there twice.
pub fn with_member(body: &[u8], name: &str, value: &[u8], before: &[u8]) -> Vec<u8> {
    let key = format!("\"{name}\"");
    let kept = if before.is_empty() { None } else { only_value(body, key.as_bytes()) };
    if let Some(at) = kept.filter(|at| body.get(*at..).is_some_and(|rest| rest.starts_with(before))) {
        let (begin, end) = (&body[..at], &body[at + before.len()..]);
        return [begin, value, end].concat();
    }
    let end = memrchr(b'}', body).unwrap_or(body.len());
    let comma: &[u8] = if is_empty(body) { b"" } else { b"," };
    [&body[..end], comma, key.as_bytes(), b":", value, b"}"].concat()
}

fn is_empty(body: &[u8]) -> bool {
    let mut written = body.iter().filter(|byte| !is_space(**byte));
    written.next() == Some(&b'{') && written.next() == Some(&b'}')
}

/// Where the value of the only member of this name begins, at any depth; None where there may be several.
fn only_value(body: &[u8], key: &[u8]) -> Option<usize> {
    let at = memmem::find(body, key)?;
    if memmem::find(&body[at + 1..], key).is_some() || has_escaped_letter(body) {
        return None;
    }
    let colon = skip_space(body, at + key.len());
    (body.get(colon) == Some(&b':')).then(|| skip_space(body, colon + 1))
}

/// Whether a letter or an underscore is written as an escape. Programs write no such name, but `"mo\u0064el"` is one.
fn has_escaped_letter(body: &[u8]) -> bool {
    memmem::find_iter(body, br"\u00").any(|at| matches!(body.get(at + 4), Some(b'5'..=b'7')))
}

fn skip_space(body: &[u8], at: usize) -> usize {
    let rest = body.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| is_space(**byte)).count()
}

/// What Python's expressions of bytes call white space.
pub fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}
