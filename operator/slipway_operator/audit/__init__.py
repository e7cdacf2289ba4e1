"""The audit log: who changed what about ModelDeployments and Tenants, and what the operator decided.

`planning/audit.py` finds what changed since the last record, `trail` writes records as a chain of lines, and `runner`
looks every few seconds.
"""
