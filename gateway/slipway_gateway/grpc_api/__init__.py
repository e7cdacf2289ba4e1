"""gRPC of the Open Inference Protocol: the gateway terminates it, and runs each call as a request over HTTP.

`listener` has the port, `methods` implements the methods, `calls` runs one call as a request, `streams` runs many of
them on one stream. `messages` and `statuses` translate, `health` is grpc.health.v1, `peers` reads addresses and
certificates of clients, `reading` bounds what clients send.
"""
