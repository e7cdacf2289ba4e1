"""Experiments at a gateway: who was exposed to which arm, and what clients say about it.

`exposures` counts units once and logs them, `counts` has what the operator reads, and `sinks` where the log goes. Which
arm a request gets is decided in `serving/experiments.py`, from the table alone.
"""
