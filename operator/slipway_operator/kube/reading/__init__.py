"""What the cluster is: the cache of lists and watches, pods and their troubles, autoscalers, and what gateways report.

Nothing here writes. `observe.py` makes the snapshot that a plan is computed from.
"""
