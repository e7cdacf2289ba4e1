"""Metrics and logs of the process.

`metrics` declares every metric. `logs` writes JSON lines to stderr.
Nothing of the gateway is imported here.
"""
