"""ModelPool: many classic models in the same pods.

`model_pool` has the type; ModelDeployments become members by spec.pool (`api/inputs/pool.py`).
"""
