"""The status of Tenants.

`reports` reads what gateways report, `planning/tenants.py` decides, `runner` writes.
"""
