"""Other engines than slipway-server, on a real cluster.

Their images are built here from packages; `make engines` runs the tests. Every test here is `extended`.
"""
