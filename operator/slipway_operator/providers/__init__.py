"""Providers of analyses: Prometheus, a URL, a Job.

This folder takes the measurements that a plan names and returns their values.
It decides nothing; `planning/analysis/measuring.py` plans the measurements.
"""
