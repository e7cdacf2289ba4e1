"""Streams of tokens for surfaces that are no HTTP responses: WebSocket and gRPC.

Each stream is a request to `/v1/generate` that runs through the API as any other. `messages` reads what clients of
WebSocket send, `events` what servers send, `marks` knows where a stream can be resumed: all three are pure. `writer`
takes a response as events, and `streams` runs requests and remembers the streams that clients may come back to.
"""
