"""Bounds on memory and connections.

`budget` counts the bytes that requests hold, with a share for each client; `container` reads the memory limit.
`places` counts what is held at once, with a share for each owner; `connections` has the owner of an address;
`transports` bounds what one read allocates. `processor` measures the use of the processor, `rate` limits calls in a
second.
"""
