//! The compiled part of the gateway. Each file is named after the Python file of the gateway that it mirrors.
//!
//! One thread owns the sockets and never attaches to Python. Only `bindings` knows Python, and only it may hold unsafe
//! code, which PyO3's macros write.

#![deny(unsafe_code)]
#![cfg_attr(not(feature = "python"), forbid(unsafe_code))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod balancing;
#[cfg(feature = "python")]
mod bindings;
pub mod caching;
pub mod forwarding;
pub mod handover;
pub mod identity;
pub mod judging;
pub mod keyed_lookup;
pub mod lane;
pub mod ledger;
pub mod limits;
pub mod listener;
pub mod quotas;
pub mod routing;
pub mod serving;
pub mod sharing;
pub mod telemetry;
pub mod upstream;
pub mod wire;

/// The version of the crate, which is that of the Python package beside it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
