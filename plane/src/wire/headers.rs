//! Headers that the gateway forwards in each direction.
//!
//! Values are as httparse returns them: no control character but a tab, and no line ends.

use super::json_values::NotSure;

/// The headers of one message in their order, as they are written.
pub type Headers<'a> = &'a [httparse::Header<'a>];

/// Credentials of clients. Pods get them only if the route lists them.
const CREDENTIALS: [&str; 4] = ["authorization", "cookie", "api-key", "x-api-key"];
/// The gateway alone sends headers of this prefix.
pub const PREFIX: &str = "x-slipway-";
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
// Each side frames bodies itself: this prevents request smuggling.
const OF_REQUEST: [&str; 6] =
    ["host", "content-length", "expect", "x-request-id", "last-event-id", "endpoint-load-metrics-format"];
const OF_ANSWER: [&str; 17] = [
    "content-length",
    "x-request-id",
    "last-event-id",
    "x-slipway-resumable",
    "x-slipway-stream",
    "x-slipway-resume",
    "x-slipway-resume-bytes",
    "x-slipway-returns",
    "x-slipway-recomputes",
    "x-slipway-revision",
    "x-slipway-prompt-tokens",
    "x-slipway-feedback",
    "x-slipway-fallback",
    "x-slipway-degraded",
    "x-slipway-route",
    "x-slipway-cache",
    "endpoint-load-metrics",
];
const COOKIES: [&str; 2] = ["set-cookie", "set-cookie2"];
/// Longer names are none of those above.
const LONGEST_NAME: usize = 32;
const LONGEST_ID: usize = 128;

/// The first header of a name, which is in lower case.
pub fn first_value<'a>(headers: Headers<'a>, name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// The id that the client sent; None when it sent none, or one of other characters or more than 128.
pub fn request_id<'a>(headers: Headers<'a>) -> Option<&'a str> {
    let value = first_value(headers, "x-request-id")?;
    let is_sane = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:/+=-".contains(byte);
    if value.is_empty() || value.len() > LONGEST_ID || !value.iter().all(is_sane) {
        return None;
    }
    std::str::from_utf8(value).ok()
}

/// Prompt tokens of a stream as its server counted them; None where it did not.
pub fn prompt_tokens(headers: Headers<'_>) -> Option<i64> {
    let value = first_value(headers, "x-slipway-prompt-tokens")?;
    if value.is_empty() || value.len() >= 10 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// What the gateway adds to a request. `forwarded`: names of the credentials that the server gets, in lower case.
///
/// `priority_limit`: the most urgent priority, which the server enforces; None: the header is left out.
#[derive(Clone, Copy, Debug)]
pub struct RequestHeaders<'a> {
    pub request_id: &'a str,
    pub tenant: &'a str,
    pub forwarded: &'a [&'a str],
    pub priority_limit: Option<i64>,
    pub weight: i64,
    /// Of the weight; empty: it is not signed.
    pub weight_signature: &'a str,
}

/// Appends the header lines of a request to a server.
///
/// # Errors
/// NotSure: `Connection` has what is no ASCII.
pub fn to_upstream(out: &mut Vec<u8>, headers: Headers<'_>, about: &RequestHeaders<'_>) -> Result<(), NotSure> {
    cross(out, headers, |name| {
        let is_kept_back = CREDENTIALS.contains(&name) && !about.forwarded.contains(&name);
        is_kept_back || OF_REQUEST.contains(&name) || name.starts_with(PREFIX)
    })?;
    line(out, "X-Request-Id", about.request_id.as_bytes());
    line(out, "X-Slipway-Resumable", b"1");
    if !about.tenant.is_empty() {
        line(out, "X-Slipway-Tenant", about.tenant.as_bytes());
    }
    if let Some(limit) = about.priority_limit {
        line(out, "X-Slipway-Priority-Limit", limit.to_string().as_bytes());
    }
    if about.weight != 1 {
        let signed = if about.weight_signature.is_empty() { "" } else { "." };
        let value = format!("{}{signed}{}", about.weight, about.weight_signature);
        line(out, "X-Slipway-Tenant-Weight", value.as_bytes());
    }
    if ["x-slipway-resumable", "last-event-id"].iter().any(|name| first_value(headers, name).is_some()) {
        line(out, "X-Slipway-Returns", b"1");
    }
    Ok(())
}

/// Appends the header lines of a response to a client. It sets cookies only if the pod gets the client's cookies.
///
/// # Errors
/// NotSure: `Connection` has what is no ASCII.
pub fn to_client(
    out: &mut Vec<u8>,
    headers: Headers<'_>,
    request_id: &str,
    revision: &str,
    forwarded: &[&str],
) -> Result<(), NotSure> {
    let sets_cookies = forwarded.contains(&"cookie");
    cross(out, headers, |name| OF_ANSWER.contains(&name) || (!sets_cookies && COOKIES.contains(&name)))?;
    line(out, "X-Request-Id", request_id.as_bytes());
    line(out, "X-Slipway-Revision", revision.as_bytes());
    Ok(())
}

/// Appends one header line.
pub fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends `headers` without those that do not cross, hop-by-hop ones and what is no UTF-8.
fn cross(out: &mut Vec<u8>, headers: Headers<'_>, is_dropped: impl Fn(&str) -> bool) -> Result<(), NotSure> {
    let listed = connection_names(headers)?;
    for header in headers {
        let mut buffer = [0; LONGEST_NAME];
        let lower = lower_name(header.name, &mut buffer);
        let drops = lower.is_some_and(|name| HOP_BY_HOP.contains(&name) || is_dropped(name))
            || (lower.is_none() && is_dropped(&header.name.to_ascii_lowercase()))
            || listed.iter().any(|name| name.eq_ignore_ascii_case(header.name));
        if !drops && std::str::from_utf8(header.value).is_ok() {
            line(out, header.name, header.value);
        }
    }
    Ok(())
}

/// A name in lower case; None for a long one.
fn lower_name<'b>(name: &str, buffer: &'b mut [u8; LONGEST_NAME]) -> Option<&'b str> {
    let lower = buffer.get_mut(..name.len())?;
    lower.copy_from_slice(name.as_bytes());
    lower.make_ascii_lowercase();
    std::str::from_utf8(lower).ok()
}

/// Names of headers that `Connection` lists: they do not cross.
fn connection_names<'a>(headers: Headers<'a>) -> Result<Vec<&'a str>, NotSure> {
    let mut listed = Vec::new();
    for header in headers.iter().filter(|header| header.name.eq_ignore_ascii_case("connection")) {
        if !header.value.is_ascii() {
            return Err(NotSure("connection"));
        }
        let value = std::str::from_utf8(header.value).map_err(|_| NotSure("connection"))?;
        listed.extend(value.split(',').map(|name| name.trim_matches([' ', '\t'])));
    }
    Ok(listed)
}
