"""The API of a pool of classic models: that of one classic model, for each of them, and their repository.

`app` builds and serves it, `models` finds the model of a request and answers what the pool refuses, `host` is one model
in memory, `repository` loads and unloads on command.
"""
