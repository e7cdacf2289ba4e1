//! Values of a body's fields, kept as they were written and read only where that is wanted.
//!
//! The scanner takes what msgspec takes, and less: JSON by RFC 8259 in valid UTF-8, of bounded depth. A value is the
//! slice of its bytes; an absent one is empty.

use std::borrow::Cow;

use memchr::memchr_iter;

/// Why a twin does not read an input: Python reads it, or refuses it in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSure(pub &'static str);

/// Of the JSON of a text, unless a caller knows better.
pub const MAX_TEXT_BYTES: usize = 4096;
/// Of a list that is counted.
pub const MAX_ITEMS: usize = 2048;
/// Values within values. Python's own bound depends on its stack, and is never below this one.
const MAX_DEPTH: u32 = 128;
const LONGEST_NUMBER: usize = 40;
const LONGEST_NOTHING: usize = 16;

const MALFORMED: NotSure = NotSure("json");
const TOO_DEEP: NotSure = NotSure("depth");

/// A position in JSON.
struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The next byte that is no white space; stays before it.
    fn next_byte(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
        self.peek()
    }

    fn take(&mut self, byte: u8) -> Result<(), NotSure> {
        if self.next_byte() != Some(byte) {
            return Err(MALFORMED);
        }
        self.at += 1;
        Ok(())
    }

    /// Skips a value; returns its bytes.
    fn value(&mut self, depth: u32) -> Result<&'a [u8], NotSure> {
        let first = self.next_byte().ok_or(MALFORMED)?;
        let begin = self.at;
        match first {
            b'"' => {
                self.text()?;
            }
            b'{' => self.list(b'}', depth, true)?,
            b'[' => self.list(b']', depth, false)?,
            b'n' => self.word(b"null")?,
            b't' => self.word(b"true")?,
            b'f' => self.word(b"false")?,
            _ => self.number()?,
        }
        self.bytes.get(begin..self.at).ok_or(MALFORMED)
    }

    fn word(&mut self, word: &[u8]) -> Result<(), NotSure> {
        let end = self.at + word.len();
        if self.bytes.get(self.at..end) != Some(word) {
            return Err(MALFORMED);
        }
        self.at = end;
        Ok(())
    }

    fn list(&mut self, end: u8, depth: u32, is_object: bool) -> Result<(), NotSure> {
        if depth >= MAX_DEPTH {
            return Err(TOO_DEEP);
        }
        self.at += 1;
        if self.next_byte() == Some(end) {
            self.at += 1;
            return Ok(());
        }
        loop {
            if is_object {
                self.name()?;
            }
            self.value(depth + 1)?;
            match self.next_byte() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == end => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(MALFORMED),
            }
        }
    }

    /// Takes a member's name and the colon behind it; returns what is between the quotes.
    fn name(&mut self) -> Result<&'a [u8], NotSure> {
        if self.next_byte() != Some(b'"') {
            return Err(MALFORMED);
        }
        let name = self.text()?;
        self.take(b':')?;
        Ok(name)
    }

    /// Takes a text at its first quote; returns what is between the quotes.
    fn text(&mut self) -> Result<&'a [u8], NotSure> {
        self.at += 1;
        let begin = self.at;
        loop {
            self.at = special_at(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return self.bytes.get(begin..self.at - 1).ok_or(MALFORMED);
                }
                Some(b'\\') => self.escape()?,
                _ => return Err(MALFORMED), // a control character, or the end
            }
        }
    }

    fn escape(&mut self) -> Result<(), NotSure> {
        let kind = self.bytes.get(self.at + 1).copied();
        match kind {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let (_, size) = unicode_escape(self.bytes, self.at).ok_or(MALFORMED)?;
                self.at += size;
            }
            _ => return Err(MALFORMED),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), NotSure> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
            if matches!(self.peek(), Some(b'0'..=b'9')) {
                return Err(MALFORMED);
            }
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), NotSure> {
        let begin = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == begin {
            return Err(MALFORMED);
        }
        Ok(())
    }
}

/// Where the next quote, backslash or control character is, from `at` on. Eight bytes are looked at together.
fn special_at(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let zero_in = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    while let Some(Ok(eight)) = bytes.get(at..at + 8).map(<[u8; 8]>::try_from) {
        let word = u64::from_le_bytes(eight);
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let hits = control | zero_in(word ^ (ONES * u64::from(b'"'))) | zero_in(word ^ (ONES * u64::from(b'\\')));
        if hits != 0 {
            // A borrow may mark a byte above the first special one, never one below it.
            return at + (hits.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|byte| *byte >= 0x20 && *byte != b'"' && *byte != b'\\') {
        at += 1;
    }
    at
}

/// The character of an escape that begins at a backslash, and its size; None for what is none, or half of a pair.
fn unicode_escape(bytes: &[u8], at: usize) -> Option<(char, usize)> {
    let first = code_unit(bytes, at)?;
    if let Some(found) = char::from_u32(first) {
        return Some((found, 6));
    }
    let second = code_unit(bytes, at + 6)?;
    if !(0xD800..0xDC00).contains(&first) || !(0xDC00..0xE000).contains(&second) {
        return None;
    }
    char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)).map(|found| (found, 12))
}

fn code_unit(bytes: &[u8], at: usize) -> Option<u32> {
    let escape = bytes.get(at..at + 6)?;
    let digits = escape.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + char::from(*digit).to_digit(16)?))
}

/// A name as it is written between its quotes, and a value.
pub type Member<'a> = (&'a [u8], &'a [u8]);

/// The members of an object, in their order.
pub struct Members<'a> {
    scanner: Scanner<'a>,
    is_first: bool,
}

impl<'a> Members<'a> {
    /// The members of a text of JSON; None where it is no object.
    pub fn of(text: &'a [u8]) -> Option<Self> {
        let mut scanner = Scanner { bytes: text, at: 0 };
        scanner.take(b'{').ok()?;
        Some(Members { scanner, is_first: true })
    }

    /// The next member; None at the end of the text.
    ///
    /// # Errors
    /// NotSure: the text is no JSON, or more follows behind the object.
    pub fn next_member(&mut self) -> Result<Option<Member<'a>>, NotSure> {
        let scanner = &mut self.scanner;
        match scanner.next_byte() {
            Some(b'}') => {
                scanner.at += 1;
                return if scanner.next_byte().is_none() { Ok(None) } else { Err(MALFORMED) };
            }
            Some(b',') if !self.is_first => {
                scanner.at += 1;
            }
            Some(_) if self.is_first => {}
            _ => return Err(MALFORMED),
        }
        self.is_first = false;
        let name = scanner.name()?;
        let value = scanner.value(1)?;
        Ok(Some((name, value)))
    }
}

/// The values of members, each the last of its name; absent ones are empty. None for what is no object, and for a value
/// of more bytes.
pub fn read_members<'a, const N: usize>(value: &'a [u8], names: [&str; N], most_bytes: usize) -> Option<[&'a [u8]; N]> {
    if value.len() < 2 || value.len() > most_bytes {
        return None;
    }
    let mut members = Members::of(value)?;
    let mut found = [&value[..0]; N];
    while let Some((written, member)) = members.next_member().ok()? {
        let name = decoded(written)?;
        if let Some(at) = names.iter().position(|wanted| *wanted == name) {
            found[at] = member;
        }
    }
    Some(found)
}

/// What a text says, from what is written between its quotes; None where that is no UTF-8.
pub fn decoded(written: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(written).ok()?;
    if !written.contains(&b'\\') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(rest.get(..at)?);
        let (found, size) = match rest.as_bytes().get(at + 1)? {
            b'b' => ('\u{8}', 2),
            b'f' => ('\u{c}', 2),
            b'n' => ('\n', 2),
            b'r' => ('\r', 2),
            b't' => ('\t', 2),
            b'u' => unicode_escape(rest.as_bytes(), at)?,
            plain => (char::from(*plain), 2),
        };
        out.push(found);
        rest = rest.get(at + size..)?;
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

/// Whether a field has no value: it is absent or null.
pub fn is_null(value: &[u8]) -> bool {
    value.is_empty() || value == b"null"
}

pub fn is_text(value: &[u8]) -> bool {
    value.first() == Some(&b'"')
}

pub fn is_list(value: &[u8]) -> bool {
    value.first() == Some(&b'[')
}

pub fn is_true(value: &[u8]) -> bool {
    value == b"true"
}

/// Whether a field is absent, null, false, zero or empty.
pub fn does_nothing(value: &[u8]) -> bool {
    match value {
        b"" | b"null" | b"false" | b"0" | b"\"\"" => true,
        [b'[', inner @ .., b']'] | [b'{', inner @ .., b'}'] => {
            value.len() <= LONGEST_NOTHING && inner.iter().all(u8::is_ascii_whitespace)
        }
        _ => false,
    }
}

/// A text; None for a value of another type, and for one that is longer, as it is written, than `MAX_TEXT_BYTES`.
pub fn text_of(value: &[u8]) -> Option<Cow<'_, str>> {
    match value {
        [b'"', written @ .., b'"'] if value.len() <= MAX_TEXT_BYTES => decoded(written),
        _ => None,
    }
}

/// A whole number of at most 19 digits, written as one; None for any other value.
pub fn integer_of(value: &[u8]) -> Option<i128> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let is_integer = matches!(digits, [b'0'] | [b'1'..=b'9', ..]) && digits.len() <= 19;
    if !is_integer || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// A whole number as servers take it that convert other types: also 3.0, "3" and true; one beyond 127 bits is the
/// largest of them. None for any other value.
pub fn lenient_integer_of(value: &[u8]) -> Option<i128> {
    if value.len() > LONGEST_NUMBER || is_null(value) {
        return None;
    }
    let written = stripped(value);
    let number = if written == b"true" { 1.0 } else { float_of(written)? };
    // Python's int of it: None is for infinities too.
    (number.is_finite() && number.fract() == 0.0).then_some(number as i128)
}

fn stripped(value: &[u8]) -> &[u8] {
    let is_outside = |byte: &u8| matches!(byte, b'"' | b' ' | b'\t' | b'\r' | b'\n');
    let begin = value.iter().position(|byte| !is_outside(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_outside(byte)).map_or(begin, |at| at + 1);
    value.get(begin..end).unwrap_or_default()
}

/// Python's `float` of bytes, but for infinities and what is no number.
pub(crate) fn float_of(written: &[u8]) -> Option<f64> {
    if !written.contains(&b'_') {
        return plain_float_of(written);
    }
    // Python takes underscores between digits.
    let is_between = |at: usize| {
        at > 0
            && written.get(at - 1).is_some_and(u8::is_ascii_digit)
            && written.get(at + 1).is_some_and(u8::is_ascii_digit)
    };
    if !memchr_iter(b'_', written).all(is_between) {
        return None;
    }
    let digits: Vec<u8> = written.iter().copied().filter(|byte| *byte != b'_').collect();
    plain_float_of(&digits)
}

fn plain_float_of(written: &[u8]) -> Option<f64> {
    let is_numeric = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    if !written.iter().all(is_numeric) {
        return None;
    }
    std::str::from_utf8(written).ok()?.parse().ok()
}

/// Of a list how many items it has, up to `MAX_ITEMS`; beyond them at least as many as it has. 1 for other values.
///
/// A list that begins with a number is one item: the token ids of a text.
pub fn count_items(value: &[u8]) -> usize {
    if !is_list(value) || value.len() == 2 || is_tokens(value) {
        return 1;
    }
    match counted(value) {
        Some(count) if count <= MAX_ITEMS => count,
        _ => memchr_iter(b',', value).count() + 1,
    }
}

fn is_tokens(list: &[u8]) -> bool {
    let first = list.iter().skip(1).find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'-' | b'0'..=b'9'))
}

/// Items of a list, counted up to one more than `MAX_ITEMS`.
fn counted(list: &[u8]) -> Option<usize> {
    let mut scanner = Scanner { bytes: list, at: 1 };
    if scanner.next_byte() == Some(b']') {
        return Some(0);
    }
    for count in 1..=MAX_ITEMS + 1 {
        scanner.value(1).ok()?;
        match scanner.next_byte() {
            Some(b',') => scanner.at += 1,
            _ => return Some(count),
        }
    }
    Some(MAX_ITEMS + 1)
}
