"""The engine: its process and the client of it, the scheduler with the block manager, and the model runner.

`engine.py` is the step: schedule, run, publish. `scheduler.py`, `block_manager.py` and `fairness.py` decide and are
pure; `runner.py` and `sampler.py` compute; `client.py` and `process.py` are the two ends of the socket.
"""
