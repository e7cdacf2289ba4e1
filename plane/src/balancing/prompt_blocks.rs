//! Blocks of a prompt's text, by which equal beginnings of prompts are recognized.

use blake2::digest::consts::U16;
use blake2::{Blake2b, Digest};
use sha2::Sha256;

use crate::wire::json_values::is_null;
use crate::wire::request_fields::{hexadecimal, Field, RequestFields};
use crate::wire::responses::writes_text;

/// The hash of a block covers everything up to its end.
pub type BlockHash = [u8; 16];

/// So many blocks of each size, the short ones first.
const BLOCKS_OF_SIZE: usize = 64;
const BLOCK_SIZES: [usize; 3] = [256, 1024, 4096];
/// In the order in which chat templates render them.
const PARTS: [Field; 5] = [Field::Tools, Field::Instructions, Field::Messages, Field::Prompt, Field::Input];

/// A prompt as it is looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptBlocks {
    /// One of each full block, chained.
    pub hashes: Vec<BlockHash>,
    /// Bytes of its whole text.
    pub size: usize,
    /// The tenant whose prompts alone it shares a cache with; empty where none is known.
    pub owner: String,
}

impl PromptBlocks {
    /// The same for all prompts that begin alike; empty for a prompt below one block.
    pub fn name(&self) -> String {
        self.hashes.first().map(|hash| hexadecimal(hash)).unwrap_or_default()
    }

    /// The blocks of a request's prompt; None where its response is no text.
    ///
    /// `tenant`: the pseudonym that servers get. `route`: the name of its route, which runs one model in all endpoints.
    pub fn of_request(path: &str, fields: &RequestFields<'_>, route: &str, tenant: &str) -> Option<Self> {
        if !writes_text(path) {
            return None;
        }
        let salt = match fields.of(Field::CacheSalt) {
            salt if is_null(salt) => String::new(),
            salt => hexadecimal(&Sha256::digest(salt)),
        };
        Some(blocks_of(&PARTS.map(|part| fields.of(part)), tenant, &format!("{route} {salt}")))
    }
}

/// Bytes of a text up to the end of so many blocks.
pub fn bytes_of(blocks: usize) -> usize {
    (0..BLOCK_SIZES.len())
        .map(|at| BLOCK_SIZES[at] * blocks.saturating_sub(at * BLOCKS_OF_SIZE).min(BLOCKS_OF_SIZE))
        .sum()
}

/// The blocks of a text in parts. Prompts of different owners or scopes share no block.
pub fn blocks_of(parts: &[&[u8]], owner: &str, scope: &str) -> PromptBlocks {
    let size = parts.iter().map(|part| part.len()).sum();
    let root = encoded_fields(&[["owner", owner], ["scope", scope]]);
    let mut parent = chained_hash(&[], [root.as_slice()]);
    let (mut hashes, mut left) = (Vec::new(), size);
    let mut text = Text { parts, at: 0 };
    for block_size in BLOCK_SIZES.into_iter().flat_map(|one| [one; BLOCKS_OF_SIZE]) {
        if left < block_size {
            break;
        }
        left -= block_size;
        parent = chained_hash(&parent, text.next_bytes(block_size));
        hashes.push(parent);
    }
    PromptBlocks { hashes, size, owner: owner.to_owned() }
}

fn chained_hash<'a>(parent: &[u8], block: impl IntoIterator<Item = &'a [u8]>) -> BlockHash {
    let mut hasher = Blake2b::<U16>::new_with_prefix(parent);
    block.into_iter().for_each(|piece| hasher.update(piece));
    hasher.finalize().into()
}

/// Names and values with their lengths, so that no two sets of fields have the same encoding. `fields`: by name.
fn encoded_fields(fields: &[[&str; 2]]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for part in fields.iter().flatten() {
        encoded.extend_from_slice(&(part.len() as u32).to_be_bytes());
        encoded.extend_from_slice(part.as_bytes());
    }
    encoded
}

/// A text in parts, and where it is read.
struct Text<'a> {
    parts: &'a [&'a [u8]],
    /// In the first of the parts.
    at: usize,
}

impl<'a> Text<'a> {
    /// The next bytes, in pieces. There are at least so many.
    fn next_bytes(&mut self, mut count: usize) -> Vec<&'a [u8]> {
        let mut pieces = Vec::with_capacity(2);
        while let Some(part) = self.parts.first().filter(|_| count > 0) {
            let piece = &part[self.at..part.len().min(self.at + count)];
            (self.at, count) = (self.at + piece.len(), count - piece.len());
            pieces.push(piece);
            if self.at == part.len() {
                (self.parts, self.at) = (&self.parts[1..], 0);
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::{blocks_of, bytes_of};

    #[test]
    fn parts_are_one_text() {
        let whole = [b"ab".repeat(300), b"cd".repeat(3000)].concat();
        let parts: [&[u8]; 4] = [&whole[..1], &whole[1..700], b"", &whole[700..]];
        assert_eq!(blocks_of(&parts, "a", "b"), blocks_of(&[&whole], "a", "b"));
        assert_ne!(blocks_of(&[&whole], "a", "b").hashes[0], blocks_of(&[&whole], "ab", "").hashes[0]);
    }

    #[test]
    fn a_long_text_has_a_bounded_number_of_blocks() {
        let text = vec![b'x'; bytes_of(192) + 100_000];
        let prompt = blocks_of(&[&text], "", "");
        assert_eq!((prompt.hashes.len(), prompt.size), (192, text.len()));
        assert_eq!([bytes_of(0), bytes_of(64), bytes_of(65), bytes_of(192)], [0, 16_384, 17_408, 344_064]);
        assert!(blocks_of(&[&text[..255]], "", "").name().is_empty());
    }
}
