"""The audit log: who changed what about ModelDeployments and Tenants, and what the operator decided.

`planning/audit.py` finds what is new, `trail` writes it as a chain of lines, `runner` looks every few seconds.
"""
