//! What a prompt has, as far as the bytes of a request show it.
//!
//! Within a text of JSON quotes are escaped, so what is looked for with its quotes is a member and no text.

use memchr::memmem;

use super::json_values::does_nothing;
use super::request_fields::{Field, RequestFields};

const TEXTS: [Field; 8] = [
    Field::Instructions,
    Field::Messages,
    Field::Prompt,
    Field::Input,
    Field::Query,
    Field::Documents,
    Field::Text1,
    Field::Text2,
];
const IMAGES: [&[u8]; 3] = [b"\"image_url\"", b"\"input_image\"", b"\"image\""];
const TYPE: &[u8] = b"\"type\"";
const FENCE: &[u8] = b"```";

/// Bytes of the prompt as it is written; of a body without one, all its bytes.
pub fn prompt_bytes(fields: &RequestFields<'_>, body_bytes: usize) -> usize {
    let written: usize = TEXTS.iter().chain(&[Field::Tools]).map(|field| fields.of(*field).len()).sum();
    if written == 0 {
        body_bytes
    } else {
        written
    }
}

pub fn has_tools(fields: &RequestFields<'_>) -> bool {
    !does_nothing(fields.of(Field::Tools))
}

pub fn has_images(fields: &RequestFields<'_>) -> bool {
    [Field::Messages, Field::Input].iter().any(|field| has_image(fields.of(*field)))
}

/// Whether there is code between fences.
pub fn has_code(fields: &RequestFields<'_>) -> bool {
    TEXTS.iter().any(|field| memmem::find(fields.of(*field), FENCE).is_some())
}

/// Whether a member `type` has one of the types of images.
fn has_image(value: &[u8]) -> bool {
    memmem::find_iter(value, TYPE).any(|at| {
        let behind = value.get(at + TYPE.len()..).unwrap_or_default().trim_ascii_start();
        let Some(written) = behind.strip_prefix(b":").map(<[u8]>::trim_ascii_start) else { return false };
        IMAGES.iter().any(|image| written.starts_with(image))
    })
}
