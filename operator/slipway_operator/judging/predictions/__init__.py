"""Whether two revisions predict alike: distributions of labels or numbers, in bins that both sides share.

`index.py` estimates the population stability index, `difference.py` is the evidence that the distributions differ at
all, `excess.py` that the index is above a bound, and `row.py` makes a metric's row of a verdict from them. Pure.
"""
