"""HTTP/2 as a server speaks it (RFC 9113), for the gRPC port: frames, header blocks, flow control, streams.

Every stream runs one handler as a task. Nothing here knows of gRPC. Header blocks are decoded by the library hpack.
"""
