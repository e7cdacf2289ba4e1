"""The status of Experiments: what gateways follow, and what they counted.

`planning/experiments.py` decides, `planning/experiment_counts.py` adds up and compares, `runner` reads and writes.
"""
