"""Python's garbage collector of cycles, in a process that serves for a long time."""

import gc

_COLLECTED_AFTER = 10_000  # more objects than at the last collection, in place of 700


def spare() -> None:
    """Excludes all objects of now from later collections, which also become rarer. Call it once all is loaded.

    Otherwise a collection of all generations takes tens of milliseconds, in which no request is answered. Requests
    leave few cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, 20, 50)
