//! Which revision serves a request: twins of the gateway's `routing/`.

pub mod public_names;
pub mod router;
pub mod rules;
pub mod split;
pub mod table;
