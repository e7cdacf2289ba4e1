"""A folder with models that outlives pods: on a node, or in a claim that several pods share. It serves one namespace.

`store` finds, publishes and evicts entries, `entries` describes and checks them, `leases` keeps those that pods use,
`locks` lets one process at a time act; `__main__` has the commands that hold a lease and prepare a node.
"""
