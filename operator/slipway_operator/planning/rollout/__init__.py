"""The rollout's state machine: a table of rows, of which one reconcile applies at most one.

`table.py` has the rows in order. Webhooks of a rollout and Argo Rollouts' status patches are here too, because rows
depend on them.
"""
