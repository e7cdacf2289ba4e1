//! What a tenant may use and has used: twins of the gateway's `quotas/`.

pub mod bounds;
pub mod estimate;
pub mod gcra;
pub mod meter;
pub mod prices;
pub mod registry;
pub mod tenant;
pub mod usage;
