"""Classic models served by us and by Python's other model servers: requests per second, latency, gRPC beside HTTP.

`python -m bench.predict`. `models` makes the files, `apps` is the code of the peers, `programs` starts them, `load`
drives them, `report` makes bars and the page.
"""
