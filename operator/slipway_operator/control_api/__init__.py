"""The control API: ModelDeployments over HTTP for tools that have a Kubernetes token and no Kubernetes client.

`bodies` reads requests, `documents` and `edits` (both pure) make responses and patches of objects, `caller` calls the
API server with the caller's own token and never with the operator's, and `app` and `server` serve it.
"""
