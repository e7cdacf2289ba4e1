"""An AnalysisTemplate in its decided form, and the values that its metrics have.

Compared metrics, metrics with a provider, conditions (`expression.py`), JSONPath, Jobs with a closed pod spec.
The reading and the verdict of the judge are here because status, judge and planner share them.
"""
