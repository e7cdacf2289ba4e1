//! Choice among the endpoints of a revision, and what is counted of them: twins of the gateway's `balancing/`.

pub mod activity;
pub mod in_flight;
pub mod pick_endpoint;
pub mod prefix_affinity;
pub mod prefix_index;
pub mod prompt_blocks;
