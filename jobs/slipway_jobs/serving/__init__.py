"""The HTTP ports: files, batches and jobs for gateways, probes and metrics for the cluster.

`app` verifies whose request it is; `files_api`, `batches_api` and `jobs_api` answer; `upload` receives a file,
and `idempotency` has a request that is sent again answered as the first time.
"""
