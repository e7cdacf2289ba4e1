"""Decisions: desired state from observed state. No I/O, no clock, no environment, no logging.

`plan.py` plans one reconcile of a ModelDeployment, `claims.py` the owners of model names. The packages import downward:
reporting, conditions, scaling, rollout, analysis, sizing, facts.
"""
