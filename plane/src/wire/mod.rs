//! What is read of and written into HTTP messages and events: twins of the gateway's `wire/`.
