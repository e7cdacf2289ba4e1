"""What one reconcile knows before it decides anything.

The situation (spec, status, observation), the revision that the spec describes, why pods are not ready, and a status
made consistent. Nothing here depends on the rollout's table.
"""
