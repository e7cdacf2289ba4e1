"""Feedback: what clients learn later about answers, counted for the revision that gave them.

`tokens.py` signs which revision gave an answer, `entries.py` parses a request, `memory.py` keeps what was counted, and
`endpoint.py` joins them.
"""
