//! What requests to model servers carry: twins of the gateway's `upstream/`.

pub mod pool;
pub mod tenant_proof;
