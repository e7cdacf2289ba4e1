//! Who a request is from: twins of the gateway's `identity/`.

pub mod api_keys;
pub mod tenants;
