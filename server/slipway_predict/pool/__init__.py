"""A pool: many classic models in one server, each in a process of its own, loaded on demand and evicted by use.

`catalog` reads which models there are, `eviction` (pure) decides which leave, `slot` is one model of the file,
`resident` one life of it in memory, `loading` makes room and loads, `pool` gives requests their models.
"""
