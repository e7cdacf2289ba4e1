"""How processes connect: which addresses are allowed, names in certificates, TLS on both sides.

`addresses` has the kinds of addresses. `host_names` are names in certificates of pods and gateways, `resolver` takes
the address from such a name. `guarded` has sessions for `urls` that users write, `listed_hosts` the hosts that an
administrator allows. `mutual_tls` makes contexts of certificates and reads renewed files. `http_server` is aiohttp's
server with less around a request.
"""
