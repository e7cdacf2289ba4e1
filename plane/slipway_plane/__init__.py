"""The compiled part of the gateway: a Rust library that accepts connections, and pure functions.

`NATIVE` is the library, or None where it was not built or cannot be loaded; `WHY_MISSING` then says why in a sentence.
`plane/build.py` builds it. Types are in `_native.pyi`: import `_native` under TYPE_CHECKING for them.
"""

from types import ModuleType

__all__ = ["NATIVE", "WHY_MISSING"]

NATIVE: ModuleType | None = None
WHY_MISSING = ""
try:
    from slipway_plane import _native
except ImportError as error:
    WHY_MISSING = f"the compiled data plane cannot be loaded: {error}"
else:
    NATIVE = _native
