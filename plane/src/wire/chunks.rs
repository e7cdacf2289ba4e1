//! The transfer coding `chunked` (RFC 9112, 7.1), read in pieces of any size.

/// Of a chunk's size: more are no length that a process can send.
const MAX_DIGITS: u8 = 15;
/// Most bytes of extensions and trailers, which are skipped.
const MAX_SKIPPED_BYTES: usize = 16 << 10;

/// The bytes are no chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// What the next byte is. As aiohttp's client does, it takes a line feed alone for the end of a line, and spaces behind
/// a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Size,
    SizeDigits(u8),
    /// Of the line of a size: what follows the digits, and the feed behind a return.
    Extension,
    SizeFeed,
    Data,
    DataReturn,
    DataFeed,
    /// A trailer, or the empty line that ends all.
    TrailerBegin,
    Trailer,
    LastFeed,
    Nothing,
}

/// Reads the body of one message.
#[derive(Clone, Debug, Default)]
pub struct ChunkDecoder {
    next: Next,
    size: u64,
    skipped: usize,
}

impl ChunkDecoder {
    /// Appends the data of these bytes to `out`; returns how many bytes belong to the message.
    ///
    /// # Errors
    /// They are no chunks. What came before is in `out`.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.next {
                Next::Nothing => return Ok(at),
                Next::Data => {
                    let rest = bytes.get(at..).unwrap_or_default();
                    let wanted = usize::try_from(self.size).unwrap_or(usize::MAX);
                    let data = rest.get(..wanted).unwrap_or(rest);
                    out.extend_from_slice(data);
                    at += data.len();
                    self.size -= data.len() as u64;
                    if self.size == 0 {
                        self.next = Next::DataReturn;
                    }
                }
                _ => {
                    self.next = self.line(byte)?;
                    at += 1;
                }
            }
        }
        Ok(at)
    }

    /// Whether the message has ended: no further byte belongs to it.
    pub fn has_ended(&self) -> bool {
        self.next == Next::Nothing
    }

    fn line(&mut self, byte: u8) -> Result<Next, Malformed> {
        match (self.next, byte) {
            (Next::Size, _) => {
                self.size = digit(byte).ok_or(Malformed)?;
                Ok(Next::SizeDigits(1))
            }
            (Next::SizeDigits(count), _) if digit(byte).is_some() => {
                self.size = self.size * 16 + digit(byte).unwrap_or(0);
                (count < MAX_DIGITS).then_some(Next::SizeDigits(count + 1)).ok_or(Malformed)
            }
            (Next::SizeDigits(_) | Next::Extension, b'\r') => Ok(Next::SizeFeed),
            (Next::SizeDigits(_) | Next::Extension | Next::SizeFeed, b'\n') => {
                Ok(if self.size == 0 { Next::TrailerBegin } else { Next::Data })
            }
            (Next::SizeDigits(_), b';' | b' ' | b'\t') | (Next::Extension, _) => self.skip(Next::Extension),
            (Next::DataReturn, b'\r') => Ok(Next::DataFeed),
            (Next::DataReturn | Next::DataFeed, b'\n') => Ok(Next::Size),
            (Next::TrailerBegin, b'\r') => Ok(Next::LastFeed),
            (Next::TrailerBegin | Next::LastFeed, b'\n') => Ok(Next::Nothing),
            (Next::Trailer, b'\n') => Ok(Next::TrailerBegin),
            (Next::TrailerBegin | Next::Trailer, _) => self.skip(Next::Trailer),
            _ => Err(Malformed),
        }
    }

    fn skip(&mut self, next: Next) -> Result<Next, Malformed> {
        self.skipped += 1;
        (self.skipped <= MAX_SKIPPED_BYTES).then_some(next).ok_or(Malformed)
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

/// Appends one chunk with this data.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bits = usize::BITS - data.len().leading_zeros();
    for place in (0..bits.div_ceil(4).max(1)).rev() {
        out.push(DIGITS[(data.len() >> (4 * place)) & 15]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), Malformed> {
        let (mut decoder, mut out) = (ChunkDecoder::default(), Vec::new());
        for piece in pieces {
            decoder.feed(piece, &mut out)?;
        }
        Ok((out, decoder.has_ended()))
    }

    #[test]
    fn extensions_and_trailers_are_skipped_and_nothing_follows_the_end() {
        let message = b"5;a=\"b\"\r\nhello\r\n1 \r\n \r\n0\r\nx-a: b\r\n\r\nHTTP";
        let (mut decoder, mut out) = (ChunkDecoder::default(), Vec::new());
        assert_eq!(decoder.feed(message, &mut out), Ok(message.len() - 4));
        assert_eq!((out.as_slice(), decoder.has_ended()), (b"hello ".as_slice(), true));
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for bad in ["\r\n", "g\r\n", "-1\r\n", "1\r\nab", "1\rx", "0\r\n\rx", "1000000000000000\r\n", "1\r\na\rb"] {
            assert_eq!(decode(&[bad.as_bytes()]), Err(Malformed), "{bad:?}");
        }
        let long = [b"1;".as_slice(), &vec![b'a'; MAX_SKIPPED_BYTES + 1]].concat();
        assert_eq!(decode(&[&long]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn chunks_are_read_as_they_were_written(parts in prop::collection::vec("[a-z]{1,40}", 0..6), cut in 0_usize..200) {
            let mut message = Vec::new();
            parts.iter().for_each(|part| write_chunk(&mut message, part.as_bytes()));
            message.extend_from_slice(b"0\r\n\r\n");
            let cut = cut.min(message.len());
            let whole = parts.concat().into_bytes();
            prop_assert_eq!(decode(&[&message[..cut], &message[cut..]]), Ok((whole, true)));
        }
    }
}
