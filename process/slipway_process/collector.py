"""Python's collector of cycles, in a process that serves for long."""

import gc

_COLLECTED_AFTER = 10_000  # objects more, in place of 700


def spare() -> None:
    """Once all is loaded: what the process is made of stays, and is not walked again. Requests leave few cycles.

    Without it a collection of all generations takes tens of milliseconds, in which no request is answered.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, 20, 50)
