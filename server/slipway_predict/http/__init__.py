"""The API of a classic model: the Open Inference Protocol v2, KServe's V1, and Slipway's own two endpoints.

`app` builds and serves it, `protocol` and `api` have the routes, `service` runs requests, `checking` compares a request
with the model's description. `bodies/` reads bodies and writes answers, `pool/` has the routes of many models, `texts/`
those of texts.
"""
