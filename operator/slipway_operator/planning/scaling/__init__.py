"""Replica counts that change beside the rollout.

`sleep.py` is the way to zero pods and back, `autoscale.py` the HorizontalPodAutoscaler of `spec.autoscaling`.
Autoscalers write `spec.replicas`, the operator never does.
"""
