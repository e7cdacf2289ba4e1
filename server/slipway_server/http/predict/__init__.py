"""The API of a classic model: the Open Inference Protocol v2, KServe's V1, and Slipway's own two endpoints.

`app` builds and serves it, `protocol` and `api` have the routes, `service` runs requests; `infer_request` and
`infer_answer` read and write the protocol's JSON with its binary extension, `infer_message` its protobuf, `rows` reads
features by name.
"""
