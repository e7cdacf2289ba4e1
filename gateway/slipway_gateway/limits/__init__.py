"""Bounds on memory and connections.

`budget` counts the bytes that requests hold, with a share for each client; `container` reads the memory limit.
`connections` counts connections by address; `transports` bounds what one read allocates. `processor` measures the use
of the processor, `rate` limits calls in a second.
"""
