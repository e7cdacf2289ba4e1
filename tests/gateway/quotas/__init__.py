"""Quotas of tenants: arithmetic, wiring, ledger."""
