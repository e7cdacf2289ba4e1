//! API keys: `slw_<id>_<secret>_<checksum>`, as `slipway keys create` makes them.
//!
//! The prefix lets scanners of secrets find keys, and a mistyped key is recognized by its checksum alone.

use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::wire::headers::Headers;
use crate::wire::json_values::NotSure;
use crate::wire::request_fields::{is_placeholder, scheme_and_key};

pub const PREFIX: &str = "slw_";
const HASH_PREFIX: &str = "hmac-sha256:";
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const SECRET_LENGTH: usize = 43;
const CHECKSUM_LENGTH: usize = 6;

/// Credentials of a request, as `Authorization` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials<'a> {
    /// There are none, or a placeholder that means none.
    Missing,
    /// What begins like an API key.
    Key(&'a str),
}

/// The credentials of a plain head.
///
/// # Errors
/// NotSure: Python decides about other schemes, tokens, and several headers.
pub fn credentials<'a>(headers: Headers<'a>) -> Result<Credentials<'a>, NotSure> {
    let mut given = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("authorization"));
    let Some(first) = given.next() else { return Ok(Credentials::Missing) };
    let (scheme, key) = scheme_and_key(first.value);
    if given.next().is_some() || !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(NotSure("credentials"));
    }
    let key = std::str::from_utf8(key).ok().filter(|key| key.is_ascii()).ok_or(NotSure("credentials"))?;
    if key.starts_with(PREFIX) {
        return Ok(Credentials::Key(key));
    }
    if is_placeholder(key.as_bytes()) {
        return Ok(Credentials::Missing);
    }
    Err(NotSure("credentials"))
}

/// The id in a key; None when it is no key, or mistyped.
pub fn key_id(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(PREFIX)?;
    let mut parts = rest.split('_');
    let (id, secret, sum) = (parts.next()?, parts.next()?, parts.next()?);
    let is_id = (6..=32).contains(&id.len()) && secret.len() == SECRET_LENGTH && sum.len() == CHECKSUM_LENGTH;
    if parts.next().is_some() || !is_id || ![id, secret, sum].iter().all(|part| is_alphanumeric(part)) {
        return None;
    }
    let signed = key.get(..key.len() - CHECKSUM_LENGTH - 1)?;
    (checksum(signed).as_slice() == sum.as_bytes()).then_some(id)
}

fn is_alphanumeric(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The last part of a key, from the text before it: its CRC-32 in base 62.
pub fn checksum(text: &str) -> [u8; CHECKSUM_LENGTH] {
    let mut number = crc32fast::hash(text.as_bytes());
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(number % 62) as usize];
        number /= 62;
    }
    digits
}

/// The hash of a key, compared in a time that does not depend on where two hashes differ.
pub struct KeyHash(CtOutput<Hmac<Sha256>>);

impl KeyHash {
    /// The hash as a Tenant has it; None for what is written otherwise, which no key has.
    pub fn read(written: &str) -> Option<Self> {
        let digits = written.strip_prefix(HASH_PREFIX)?.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(KeyHash(CtOutput::new(hash.into())))
    }
}

/// The secret that all hashes of keys have in common, prepared for HMAC-SHA-256.
#[derive(Clone)]
pub struct Pepper(Hmac<Sha256>);

impl Pepper {
    /// None for an empty pepper, which is none.
    pub fn new(pepper: &[u8]) -> Option<Self> {
        let hmac = Hmac::new_from_slice(pepper).ok()?;
        (!pepper.is_empty()).then_some(Pepper(hmac))
    }

    pub fn hash(&self, key: &str) -> KeyHash {
        let mut mac = self.0.clone();
        mac.update(key.as_bytes());
        KeyHash(mac.finalize())
    }

    /// Which of the entries has the hash of this key. All are compared; without any, a hash that no key has.
    pub fn find(&self, key: &str, entries: &[KeyHash]) -> Option<usize> {
        let hash = self.hash(key);
        if entries.is_empty() {
            let _ = std::hint::black_box(hash.0 == CtOutput::new([0; 32].into()));
            return None;
        }
        let mut found = None;
        for (at, entry) in entries.iter().enumerate().rev() {
            if std::hint::black_box(entry.0 == hash.0) {
                found = Some(at);
            }
        }
        found
    }
}
