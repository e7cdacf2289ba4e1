"""Objects of a ModelPool.

`stateful_set` has its pods, and what is around them; `entries` the file from which they know their models.
"""
