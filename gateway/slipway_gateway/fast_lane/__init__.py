"""The fast lane of the compiled data plane, as Python has it: its table, its counts, and a recount of a sample.

`lane` joins both: it publishes what `table` compiles, and gives what the lane counted to Python's counters. `recount`
computes some requests again. docs/plane.md describes the lane; its code is in plane/src.
"""
