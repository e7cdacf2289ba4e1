"""Structured output: which tokens a grammar allows next, computed in a process beside the engine's.

`masks` is the engine's side, `process` the grammar process; `compiler` compiles a grammar to a matcher, after `trial`
has tried it in a process that may crash. The engine loop knows only masks. The first request with a grammar starts the
grammar process.
"""
