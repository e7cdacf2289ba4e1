//! What tenants spend, and charges on their way to the ledger: twins of the gateway's `ledger/`.

pub mod charges;
pub mod periods;
pub mod spending;
