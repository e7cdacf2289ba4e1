"""The conditions of a ModelDeployment: derived from decisions, never an input of one.

Each is one function, declared with its type where it is decided (`condition_type.py` says how). `table.py` has all of
them; the status, the column REASON, Events, what is kept while a spec is invalid, and docs/status.md follow from it.
"""
