"""Replica counts that change independently of a rollout.

`sleep.py` scales to zero and back, `autoscale.py` decides about the HorizontalPodAutoscaler of `spec.autoscaling`.
Autoscalers write `spec.replicas`, the operator never does.
"""
