"""Keeps what requests are authenticated by, and authenticates them.

`tenant_source` watches Tenants, `known_tenants` and `last_tenants` keep them, `pepper` reads the release's secret,
`authenticator` applies the mode and counts.
"""
