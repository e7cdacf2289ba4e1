"""Connections that the operator opens to addresses that tenants wrote.

`addresses.py` says which addresses are allowed, pure; `dialer.py` connects, with bounds on size and time.
What is read there is never shown to anyone else.
"""
