"""The WebSocket of the API, `/v1/stream`: https://www.rfc-editor.org/rfc/rfc6455 (docs/streaming.md describes it).

`handshake` decides who may open a connection, `frames` counts what arrives of one and writes messages, both pure.
`connection` serves one: many requests beside one another, within bounds. `endpoint` has all connections of a gateway.
"""
