"""Connections that the operator opens to addresses that tenants wrote.

`addresses.py` decides which addresses are allowed, pure; `dialer.py` connects, with limits on size and time.
Responses are shown to no other tenant.
"""
