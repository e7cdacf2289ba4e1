"""The log of generations: prompts and responses, or their lengths and hashes, by consent of owner and tenant.

`capture` takes what a client gets, `log` makes rows of it, `table` is the database, which seals contents. `export` and
`erase` are programs for administrators.
"""
