"""Every request of the fast lane is counted again by Python, and all that clients received is in the counters.

    make recount                              # 10,000,000 requests
    python -m tests.plane.recount --requests 20000

A gateway in a process of its own serves clients in other processes, which send what clients send (`mix.py`), to servers
that behave in all ways that servers do (`server.py`). Weights change meanwhile, and each gateway drains at the end of
its part of the requests. Then what clients received, what servers got, and what the gateway counted in both lanes must
be the same numbers (`compare.py`). The first difference ends the run.
"""
