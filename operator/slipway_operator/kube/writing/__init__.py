"""What a reconcile writes: a plan's objects and status, Events, and what is kept beside them for pods and gateways.

`apply.py` executes a plan; the others each keep one kind of object as it should be.
"""
