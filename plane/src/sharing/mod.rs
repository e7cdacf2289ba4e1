//! Limits that gateways count together: twins of the gateway's `sharing/`.

pub mod counters;
