"""What the gateway costs beside its peers: CPU time of requests, events and calls, added latency, memory of streams.

`python -m bench.gateway`. `peers` are the gateway's lanes and what they are compared with, configured by
`configurations`; `programs` starts them, and the model server behind them, which is `mock/` in Rust (`mock_build`) or
`upstream`. `bare`, `pipe` and `metered` are programs of its own. `load`, `stream_load` and `control` make work, `parts`
measure in a `run`; `report` makes rows and bars, `tables` the page.
"""
