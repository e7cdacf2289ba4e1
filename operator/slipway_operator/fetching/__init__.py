"""How far pods are that download a model, as their fetchers serve it.

`page` reads what a pod sends, and `reader` gets it in the background: a reconcile never waits for a pod.
"""
