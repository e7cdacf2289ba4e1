//! Server-sent events: only whole events are forwarded.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memmem};

use super::members::is_space;

/// Precedes an event that further events of the same token follow: no stream is resumed between them.
pub const FOLLOWED: &[u8] = b": +\n";
const CRASHED: &[u8] = b": engine_crashed";
/// The last event of OpenAI's streams.
pub const DONE: &[u8] = b"data: [DONE]\n\n";
/// What a client gets in a long silence: a line and no empty one behind it.
pub const KEEP_ALIVE: &[u8] = b":\n";
/// Beyond these an unfinished event, or events of one token, are handed on as they are: memory is bounded, whatever an
/// upstream sends.
const MAX_PARTIAL_BYTES: usize = 256 << 10;
const MAX_FOLLOWED: usize = 64;
/// Of more bytes at once, only the last events are looked at one by one.
const MANY_BYTES: usize = 8 << 10;
const ENDS: [&[u8]; 3] = [b"\n\n", b"\n\r\n", b"\r\r"];

/// Holds back an unfinished event, so that an error event never lands inside another one, and events of one token
/// until all of them are there.
///
/// Each byte is looked at a bounded number of times, in however many pieces it comes.
#[derive(Debug, Default)]
pub struct EventAligner {
    held: Vec<u8>,
    /// Where the first event begins that is not known to be whole. Those before it, `followed`, are followed by others.
    begin: usize,
    followed: usize,
    is_after_comment: bool,
}

/// What an aligner holds, as Python has it: bytes, where their first event begins that is not known to be whole, how many
/// before it are followed by others, and whether a comment came last.
pub type Held = (Vec<u8>, usize, usize, bool);

impl EventAligner {
    pub fn holding((held, begin, followed, is_after_comment): Held) -> Self {
        let begin = begin.min(held.len());
        EventAligner { held, begin, followed, is_after_comment }
    }

    pub fn held(&self) -> Held {
        (self.held.clone(), self.begin, self.followed, self.is_after_comment)
    }

    /// Takes the next bytes of a stream; returns those that may be forwarded now: events, or `KEEP_ALIVE`.
    pub fn feed<'a>(&mut self, chunk: &'a [u8]) -> Cow<'a, [u8]> {
        if self.held.is_empty()
            && !self.is_after_comment
            && chunk.ends_with(b"\n\n")
            && memmem::find(chunk, FOLLOWED).is_none()
        {
            return without_comments(Cow::Borrowed(chunk));
        }
        // An end may have begun in the last three bytes of before.
        let mut looked = self.begin.max(self.held.len().saturating_sub(3));
        self.held.extend_from_slice(chunk);
        let is_alive = self.drop_keep_alive();
        if is_alive {
            looked = 0;
        }
        let mut ready = 0;
        if self.held.len().saturating_sub(looked) > MANY_BYTES {
            if let Some(begin) = self.last_events(looked) {
                (looked, ready, self.begin, self.followed) = (begin, begin, begin, 0);
            }
        }
        while let Some(end) = event_end(&self.held, looked) {
            self.followed = if self.is_followed() { self.followed + 1 } else { 0 };
            (self.begin, looked) = (end, end);
            if self.followed == 0 || self.followed > MAX_FOLLOWED {
                (ready, self.followed) = (end, 0);
            }
        }
        if ready == 0 && self.held.len() > MAX_PARTIAL_BYTES {
            ready = self.held.len();
        }
        let events = without_comments(Cow::Owned(self.cut(ready)));
        if events.is_empty() && is_alive {
            return Cow::Borrowed(KEEP_ALIVE);
        }
        events
    }

    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Whether the unfinished event at the end reports that the engine died.
    pub fn reports_crash(&self) -> bool {
        let begin = self.held.iter().position(|byte| !is_space(*byte)).unwrap_or(0);
        let end = self.held.iter().rposition(|byte| !is_space(*byte)).map_or(0, |at| at + 1);
        self.held.get(begin..end) == Some(CRASHED)
    }

    /// What is held; nothing is afterwards.
    pub fn flush(&mut self) -> Vec<u8> {
        self.cut(self.held.len())
    }

    /// Whether the event at `begin` is followed by others of its token.
    fn is_followed(&self) -> bool {
        let rest = self.held.get(self.begin..).unwrap_or_default();
        let ends = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        rest[ends..].starts_with(FOLLOWED)
    }

    /// Where more events begin than are held for others of their token; None where there are not so many.
    ///
    /// The events before them are handed on: one of the later ones ends its token, or they are too many to hold.
    fn last_events(&self, looked: usize) -> Option<usize> {
        let rest = self.held.get(looked..)?;
        let finders = ENDS.map(memmem::FinderRev::new);
        let mut at = rest.len();
        for _ in 0..MAX_FOLLOWED + 2 {
            let before = rest.get(..at)?;
            at = finders.iter().filter_map(|finder| finder.rfind(before)).max()?;
        }
        separator_at(&self.held, looked + at)
    }

    /// Takes lines of `KEEP_ALIVE` from the beginning of what is held; returns whether there were some.
    fn drop_keep_alive(&mut self) -> bool {
        // The empty line of a comment may come in another piece than the comment.
        let mut size = usize::from(self.is_after_comment && self.held.first() == Some(&b'\n'));
        while self.held.get(size..).is_some_and(|rest| rest.starts_with(KEEP_ALIVE)) {
            size += KEEP_ALIVE.len();
            size += usize::from(self.held.get(size) == Some(&b'\n'));
            self.is_after_comment = true;
        }
        self.is_after_comment &= self.held.len() == size;
        self.cut(size);
        size > 0
    }

    /// Takes bytes from the beginning of those that are held.
    fn cut(&mut self, size: usize) -> Vec<u8> {
        if size == 0 {
            return Vec::new();
        }
        let rest = self.held.split_off(size.min(self.held.len()));
        let ready = std::mem::replace(&mut self.held, rest);
        self.begin = self.begin.saturating_sub(size);
        if self.begin == 0 {
            self.followed = 0;
        }
        ready
    }
}

/// Behind the first end of an event from `at` on: two ends of lines or more.
fn event_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr2(b'\n', b'\r', bytes.get(at..)?)?;
        if let Some(end) = separator_at(bytes, at) {
            return Some(end);
        }
        at += 1;
    }
}

/// Behind the end of an event that begins at `at`; None where none does.
fn separator_at(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes.get(at..)?;
    let first = if rest.starts_with(b"\n") {
        1
    } else if rest.starts_with(b"\r\n") {
        2
    } else {
        0
    };
    if first > 0 {
        let mut end = first;
        while let Some(size) = line_end(&rest[end..]) {
            end += size;
        }
        return (end > first).then_some(at + end);
    }
    let returns = rest.iter().take_while(|byte| **byte == b'\r').count();
    (returns > 1).then_some(at + returns)
}

/// The size of a line feed, with a return before it or none.
fn line_end(rest: &[u8]) -> Option<usize> {
    match rest {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// Whole events without the comments between them, which show that a server is alive; the events show it too.
///
/// Nothing but comments becomes `KEEP_ALIVE`.
pub fn without_comments(events: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let Some((begin, end)) = comments_from(&events, 0) else { return events };
    let mut kept = Vec::with_capacity(events.len());
    kept.extend_from_slice(&events[..begin]);
    let mut at = end;
    while let Some((begin, end)) = comments_from(&events, at) {
        kept.extend_from_slice(&events[at..begin]);
        at = end;
    }
    kept.extend_from_slice(&events[at..]);
    if kept.is_empty() {
        return Cow::Borrowed(KEEP_ALIVE);
    }
    Cow::Owned(kept)
}

/// Where the next comments begin and end that follow an event, or nothing, and are no mark and no report of a crash.
fn comments_from(events: &[u8], from: usize) -> Option<(usize, usize)> {
    let mut at = if from == 0 { 0 } else { next_line(events, from - 1)? };
    loop {
        let before = &events[..at];
        if at == 0 || before.ends_with(b"\n\n") || before.ends_with(b"\n\r\n") {
            let mut end = at;
            while let Some(size) = comment_size(&events[end..]) {
                end += size;
            }
            if end > at {
                return Some((at, end));
            }
        }
        at = next_line(events, at)?;
    }
}

/// Where the next line begins that begins with a colon, behind a line feed at `at` or later.
fn next_line(events: &[u8], at: usize) -> Option<usize> {
    memmem::find(events.get(at..)?, b"\n:").map(|found| at + found + 1)
}

/// The size of a comment at the beginning: an event that is nothing else, or a line of `KEEP_ALIVE`.
fn comment_size(rest: &[u8]) -> Option<usize> {
    if rest.first() != Some(&b':') {
        return None;
    }
    if !is_meant_for_gateway(&rest[1..]) {
        let line = memchr(b'\n', rest)? + 1;
        if let Some(size) = line_end(&rest[line..]) {
            return Some(line + size);
        }
    }
    rest.starts_with(KEEP_ALIVE).then_some(KEEP_ALIVE.len())
}

/// Whether what follows a colon is a mark or the report of a crash.
fn is_meant_for_gateway(rest: &[u8]) -> bool {
    let line = [b" +".as_slice(), &CRASHED[1..]].into_iter().find_map(|mark| rest.strip_prefix(mark));
    line.is_some_and(|behind| line_end(behind).is_some())
}

/// Events without the comment at their end that reports an engine crash, and whether it was there.
pub fn split_crash_comment(events: &[u8]) -> (&[u8], bool) {
    let begin = events.strip_suffix(b"\n\n").and_then(|whole| whole.strip_suffix(CRASHED));
    match begin {
        Some(before) if before.is_empty() || before.ends_with(b"\n") => (before, true),
        _ => (events, false),
    }
}
