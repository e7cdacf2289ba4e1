//! What is shown of the fast lane: twins of the gateway's `telemetry/`.

pub mod access_log;
pub mod metrics;
