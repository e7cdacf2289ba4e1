"""What the gateway costs beside its peers: requests per CPU-second, added latency, slow streams at a time.

`python -m bench.gateway`. `programs` starts the gateway and its peers, `upstream`, `bare` and `pipe` are small servers
of its own, `load` drives them, `report` makes bars and the page.
"""
