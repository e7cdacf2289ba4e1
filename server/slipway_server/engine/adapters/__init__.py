"""The adapters that a server has: which ones are loaded, which have to go, and which requests wait for one.

`store` keeps them in the engine process, `loader` is its thread that reads them, and `catalog` has their names in the
HTTP process.
"""
