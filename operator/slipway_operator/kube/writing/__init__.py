"""What a reconcile writes: a plan's objects and status, Events, and further objects for pods and gateways.

`apply.py` executes a plan; each other module maintains one kind of object.
"""
