//! What the operator's judge compares: twins of the gateway's `judging/`. Both lanes count sessions here.

pub mod outcome;
pub mod samples;
pub mod units;
