"""Structured output: which tokens a grammar allows next, computed in a process beside the engine's.

`masks` is the engine's side and `process` the other one; `compiler` makes matchers, and `trial` tries a stranger's
grammar where it can do no harm. The engine loop knows only masks, and a request without a grammar starts nothing.
"""
