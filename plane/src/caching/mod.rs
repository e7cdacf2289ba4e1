//! Kept responses in the fast lane: copies of what the gateway's `caching/` keeps, which alone decides what is there.

pub mod copies;
pub mod request_key;
