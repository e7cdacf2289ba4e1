"""Limits of tenants that several gateways share.

`limiter` admits requests within limits: counted at a Redis server (`redis_counters`, with the scripts of `scripts`), or
within this gateway's share, by the number of ready gateways (`ready_gateways`, which `gateway_source` watches).
"""
