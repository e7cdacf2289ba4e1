"""The API of the pod: JSON and SSE in front of the engine process.

`app` builds it, `openai` and `slipway` have the routes, `service` passes requests to the engine. Parsing
is in `requests/`, rendering in `responses/`.
"""
