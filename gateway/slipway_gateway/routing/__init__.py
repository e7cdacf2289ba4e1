"""The route table, its sources, and the choice of a revision and an endpoint.

`table` is built by a source (`cluster`, `routes_file`, `last_table`). `split` hashes a key to a revision and `router`
picks its least loaded endpoint. No state of a request is kept here.
"""
