//! What is read of and written into HTTP messages and events: twins of the gateway's `wire/`.

pub mod chunks;
pub mod headers;
pub mod inference;
pub mod json_values;
pub mod members;
pub mod prompts;
pub mod request_fields;
pub mod responses;
pub mod resume;
pub mod sse;
pub mod subset;
