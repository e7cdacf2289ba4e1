"""Limits of tenants: what a request may take and what it is charged in the end (pure, times are parameters).

`gcra` is one bucket, `tenant` all limits of one tenant, `registry` all tenants; `estimate` says what a request may
cost before it is known, `usage` what it did cost, and `meter` follows one request from one to the other.
"""
