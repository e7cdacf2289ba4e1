"""The gateway's side towards model servers and the jobs process: requests, responses, connections.

`exchange` is the request that every attempt sends and the response that comes back. `session` opens connections,
`direct` sends small requests over them, `warmup` keeps some open, and `tenant_proof` signs the tenant. `jobs_process`
forwards files and batches.
"""
