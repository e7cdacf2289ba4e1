"""The API of a pool of classic models: the API of one classic model for each of them, and the repository extension.

`app` builds and serves it, `models` finds the model of a request and converts the pool's errors to HTTP errors, `host`
is one model in memory, `repository` loads and unloads on command.
"""
