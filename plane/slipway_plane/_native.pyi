"""Types of the Rust library (plane/src/bindings)."""

def version() -> str:
    """The version of the crate."""
