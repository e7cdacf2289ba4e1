//! Who a request is from: twins of the gateway's `identity/`.
