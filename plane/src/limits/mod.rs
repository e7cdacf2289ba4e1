//! What bounds clients before a request of theirs is read: twins of the gateway's `limits/` and of `places.py`.

pub mod connections;
pub mod places;
