//! A request on its way: twins of the gateway's `forwarding/`.

pub mod poison;
pub mod relay;
pub mod sender;
