"""Decisions: what should be, from what is. No I/O, no clock, no environment, no logging.

`plan.py` plans one reconcile of a ModelDeployment, `claims.py` who owns which model name. The packages import downward:
reporting, scaling, rollout, analysis, sizing, facts.
"""
