"""Signs the verdicts of rollouts, and keeps each statement at the record of its revision.

`planning/statement.py` decides what a statement says; `runner.py` signs and writes it.
"""
