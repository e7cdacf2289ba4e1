"""What the operator reads from the cluster besides spec and status, and what a plan does to it.

`observed.py` is the snapshot that a plan is computed from, `plan.py` the writes that `kube/writing/apply.py` executes.
Claims of model names, tenants' keys and pinned weights are here too.
"""
