"""Rollouts in a row while requests run and processes are killed: what is lost? `python -m bench.chaos`."""
