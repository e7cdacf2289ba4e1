//! Connections of clients in the fast lane: twins of the gateway's `serving/`.

pub mod admission;
pub mod api;
pub mod bridge;
pub(crate) mod hits;
pub mod requester;
pub mod streams;
pub mod tls;
