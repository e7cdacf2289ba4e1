"""Analysis runs of a rollout, from the gateways' counters to the verdict in the status.

Runs begin and are read here; `counting.py` adds counters up, `measuring.py` plans measurements, and the judge itself is
`slipway_operator.judging`. `retrial.py` is for `slipway analyze`.
"""
