"""The gateway's side towards model servers and the jobs process: requests, responses, connections.

`exchange` is the request that every attempt sends and the response that comes back. `session` opens connections;
`direct` sends small requests over those of `pool`, each a `connection`; `warmup` keeps some open. `tenant_proof` signs
the tenant, and `jobs_process` forwards files and batches.
"""
