//! Choice among the endpoints of a revision: a twin of what the gateway's `balancing/` and `routing/router.py` do.

pub mod pick_endpoint;
