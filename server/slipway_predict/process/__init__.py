"""The process of a model: what crosses to it and back, and what it may not do.

`client` is the HTTP process's end and `child` the other one; `messages` cross between them over a `wire`. `isolation`
bounds the child before it reads a file, and `warm_up` measures the model before it serves.
"""
