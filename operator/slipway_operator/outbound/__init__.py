"""Connections that the operator opens to addresses that tenants wrote.

`addresses.py` decides which addresses are allowed, pure; `dialer.py` connects, with limits on size and time.
Responses are never shown to anyone else.
"""
