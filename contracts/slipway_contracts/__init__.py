"""What processes of Slipway exchange, described once: both sides use the same names and types.

`route_table` and `twin_shadow` are what gateways route by, `tenants` who sends requests, `counters` what gateways
count, `headers` what a request has. `passes` and `release_keys` sign and verify, `protobuf` reads and writes messages,
`hash_chain` lines of a log, and `api` custom resources. Every process may import this; it imports none, and of others
pydantic and msgspec alone.
"""
