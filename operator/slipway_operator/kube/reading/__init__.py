"""Reads the cluster: the cache of lists and watches, troubles of pods, autoscalers, and reports of gateways.

Nothing here writes. `observe.py` makes the snapshot that a plan is computed from.
"""
