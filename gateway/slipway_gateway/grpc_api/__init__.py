"""gRPC of the Open Inference Protocol: it ends here, and each call goes through the API as a request over HTTP does.

`listener` has the port, `methods` says what each method does, `calls` runs one as a request, `streams` many of them;
`messages` and `statuses` translate, `health` is grpc.health.v1, `peers` has what is known of clients, `reading` bounds
what they send.
"""
