"""Connections that the operator opens for tenants, to addresses that tenants wrote: guarded, bounded, never echoed."""
