"""The pods of a revision.

`workload` renders them and their ReplicaSet, `bounds` limits what they write, `model_cache` keeps their weights for
other pods, `adapter_loader` loads adapters beside the engine, `tenant_key` gives them the keys by which they know a
gateway, `environment` merges variables.
"""
