//! Which revision serves a request: twins of the gateway's `routing/`.
