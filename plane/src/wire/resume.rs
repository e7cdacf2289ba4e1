//! Resuming a stream at another server: marks in its events.

use memchr::{memchr, memmem};

use super::headers::{first_value, Headers};

/// Some 20,000 tokens. A longer answer is resumed by generating it once more up to the break, which costs time alone.
pub const MAX_TOKEN_BYTES: usize = 128 << 10;
const MAX_DIGITS: usize = 10;
const MARK: &[u8] = b": ";
const STREAM: &str = "x-slipway-stream";

/// What the client has of one stream: the last event, and the tokens of all events.
#[derive(Clone, Debug)]
pub struct StreamProgress {
    revision: String,
    stream: String,
    /// Up to the position, and behind the check, of the id of an event.
    begin: Vec<u8>,
    end: Vec<u8>,
    last: Vec<u8>,
    /// The mark of the last event with tokens: that of usage has none.
    last_token: Vec<u8>,
    tokens: Vec<u8>,
    /// Bytes of tokens before `tokens`, which are kept elsewhere.
    before: usize,
    is_whole: bool,
}

/// A progress without its tokens, as Python has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progressed {
    /// Up to the position, and behind the check, of the id of an event.
    pub begin: Vec<u8>,
    pub end: Vec<u8>,
    /// Marks of the last event, and of the last one with tokens.
    pub last: Vec<u8>,
    pub last_token: Vec<u8>,
    pub is_whole: bool,
}

impl StreamProgress {
    /// None when the server does not mark its events: then its bytes are passed on as they are.
    ///
    /// `tokens`: those that the client had before, each followed by a comma.
    pub fn start(headers: Headers<'_>, revision: &str, holder: &str, tokens: Vec<u8>) -> Option<Self> {
        let stream = first_value(headers, STREAM).filter(|value| is_stream(value))?;
        let mut progress = StreamProgress {
            revision: percent_encoded(revision),
            stream: String::new(),
            begin: Vec::new(),
            end: Vec::new(),
            last: Vec::new(),
            last_token: Vec::new(),
            tokens,
            before: 0,
            is_whole: true,
        };
        progress.name(stream);
        progress.move_to(holder);
        Some(progress)
    }

    /// A progress that Python goes on with. `before`: bytes of the tokens that it has.
    pub fn of(state: Progressed, before: usize) -> Self {
        let Progressed { begin, end, last, last_token, is_whole } = state;
        let (revision, stream) = (String::new(), String::new());
        StreamProgress { revision, stream, begin, end, last, last_token, tokens: Vec::new(), before, is_whole }
    }

    /// What Python goes on with: the state, and the tokens since it began.
    pub fn into_parts(self) -> (Progressed, Vec<u8>) {
        let StreamProgress { begin, end, last, last_token, tokens, is_whole, .. } = self;
        (Progressed { begin, end, last, last_token, is_whole }, tokens)
    }

    /// Bytes of all tokens.
    pub fn size_bytes(&self) -> usize {
        self.before + self.tokens.len()
    }

    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The tokens of all events so far, each followed by a comma; empty when they were too many to keep.
    pub fn tokens(&self) -> &[u8] {
        &self.tokens
    }

    /// Whether `tokens` are all of them.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Tokens of the stream so far; 0 for a mark that no server writes.
    pub fn position(&self) -> u64 {
        let end = memchr(b'.', &self.last_token).unwrap_or(self.last_token.len());
        let digits = &self.last_token[..end];
        if digits.len() < MAX_DIGITS {
            number(digits).unwrap_or(0)
        } else {
            0
        }
    }

    /// Drops the tokens: a server that resumes the stream generates them once more.
    pub fn forget(&mut self) {
        (self.is_whole, self.before) = (false, 0);
        self.tokens = Vec::new();
    }

    /// Events come from the endpoint of this tag from now on.
    pub fn move_to(&mut self, holder: &str) {
        self.end = [b".", holder.as_bytes()].concat();
    }

    /// Whether a response continues the stream. While the client has no event, any stream with marks does.
    pub fn continues(&mut self, headers: Headers<'_>) -> bool {
        let stream = first_value(headers, STREAM).unwrap_or_default();
        if self.last.is_empty() && is_stream(stream) {
            self.name(stream);
        }
        stream == self.stream.as_bytes()
    }

    /// The value of `X-Slipway-Resume` for the rest of the stream; None while the client has no event.
    pub fn resume(&self) -> Option<Vec<u8>> {
        let is_begun = !self.last.is_empty();
        is_begun.then(|| [self.stream.as_bytes(), b".", &self.last].concat())
    }

    /// Whole events with their marks → with ids for the client, appended to `out`.
    pub fn add_ids(&mut self, events: &[u8], out: &mut Vec<u8>) {
        out.reserve(events.len() + self.begin.len() + self.end.len());
        let mut rest = events;
        while let Some(at) = memmem::find(rest, b"\n\n") {
            let (event, others) = rest.split_at(at);
            self.add_id(event, out);
            out.extend_from_slice(b"\n\n");
            rest = &others[2..];
        }
        out.extend_from_slice(rest);
    }

    /// `event`: without the empty line at its end.
    fn add_id(&mut self, event: &[u8], out: &mut Vec<u8>) {
        // Other comments, such as that of a crash, are no place to go on from.
        if !event.starts_with(MARK) || !event.get(2).is_some_and(u8::is_ascii_digit) {
            out.extend_from_slice(event);
            return;
        }
        let end = memchr(b'\n', event).unwrap_or(event.len());
        let mark = &event[2..end];
        let space = memchr(b' ', mark).unwrap_or(mark.len());
        self.last.clear();
        self.last.extend_from_slice(&mark[..space]);
        if let Some(tokens) = mark.get(space + 1..).filter(|tokens| !tokens.is_empty()) {
            self.last_token.clone_from(&self.last);
            self.remember(tokens);
        }
        for part in [&self.begin, &self.last, &self.end] {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&event[end..]);
    }

    fn remember(&mut self, tokens: &[u8]) {
        if self.is_whole && self.size_bytes() + tokens.len() < MAX_TOKEN_BYTES {
            self.tokens.extend_from_slice(tokens);
            self.tokens.push(b',');
        } else {
            self.forget();
        }
    }

    fn name(&mut self, stream: &[u8]) {
        self.stream = String::from_utf8_lossy(stream).into_owned();
        self.begin = format!("id: {}.{}.", self.revision, self.stream).into_bytes();
    }
}

/// The position, in tokens, in a value of `X-Slipway-Resume`; 0 without one.
pub fn position_of(resume: &str) -> u64 {
    let parts: Vec<&str> = resume.splitn(4, '.').collect();
    match parts.as_slice() {
        [_, position, _] => number(position.as_bytes()).unwrap_or(0),
        _ => 0,
    }
}

/// A number of digits alone; the largest one for more of them.
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, add))
}

fn is_stream(value: &[u8]) -> bool {
    let parts: Vec<&[u8]> = value.splitn(4, |byte| *byte == b'-').collect();
    let is_hexadecimal = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match parts.as_slice() {
        [gateway, server, random] => {
            let fits = |part: &[u8]| (1..=16).contains(&part.len());
            fits(gateway) && fits(server) && random.len() == 32 && parts.iter().all(|part| is_hexadecimal(part))
        }
        _ => false,
    }
}

/// Python's `quote` without characters that are safe.
fn percent_encoded(text: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
            out.push('%');
            out.extend(digits.map(char::from));
        }
    }
    out
}
