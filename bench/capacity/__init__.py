"""Scaling policies on simulated traces of demand: attainment and replica-hours beside a clairvoyant planner.

`traces.py` draws demand, `pods.py` computes what pods make of it, `policies.py` has the rules, `report.py` the bars.
"""
