"""The pods of a revision.

`workload` renders them and their ReplicaSet, `bounds` limits what they write, `model_cache` keeps their weights for
other pods, `tenant_key` gives them the keys by which they know a gateway, `environment` merges variables.
"""
