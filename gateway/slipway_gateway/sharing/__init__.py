"""Limits of tenants that several gateways share.

`limiter` takes requests into limits: at a Redis server (`redis_counters`, by the scripts of `scripts`), or this
gateway's share of them, by the number of ready gateways (`ready_gateways`, which `gateway_source` watches).
"""
