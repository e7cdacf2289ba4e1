"""The HTTP ports: files, batches and jobs for gateways, probes and metrics for the cluster.

`app` verifies the tenant of a request; `files_api`, `batches_api` and `jobs_api` answer it; `upload` receives a file,
and `idempotency` gives a request that is sent again the answer of the first time.
"""
