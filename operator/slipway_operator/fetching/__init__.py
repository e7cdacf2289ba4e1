"""Progress of pods that download a model, as their fetchers serve it.

`page` parses the answer of a pod, and `reader` requests it in the background: a reconcile never waits for a pod.
"""
