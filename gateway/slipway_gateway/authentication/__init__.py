"""Authenticates requests, and keeps what that needs: Tenants, the pepper, and keys of issuers.

`tenant_source` watches Tenants, `known_tenants` has their current table, `last_tenants` keeps it across restarts.
`pepper` reads the release's secret, `issuers` fetches keys, `service_accounts` has tokens reviewed by the API server.
`authenticator` applies the gateway's mode and counts the results.
"""
