"""Whole releases: a twin shadow, a ramp with bounded harm and a bake, beside what others do with the same requests.

`rows.py` has the canaries and the requests, `slipway.py` and `others.py` the rules, `figures.py` what came of each,
`section.py` bars and tables, `picture.py` the picture.
"""
