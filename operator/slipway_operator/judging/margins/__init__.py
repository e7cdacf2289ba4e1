"""Margins in what users feel: at most so many extra bad responses per 1,000, at most so much slower.

`extra.py` bounds extra bad responses, of pairs and of live requests; `slowness.py` compares latencies of pairs;
`ramp.py` chooses a weight whose possible harm fits a budget; `disagreement.py` words counts of other predictions. Pure.
"""
