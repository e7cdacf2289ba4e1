"""The compiled data plane by itself: how it is built, and its pure functions beside those of Python.

Both sides get the same inputs and must answer the same. The Rust side may leave an input to Python, by NotSure; it may
never answer differently, and of ordinary requests it leaves none.
The gateway's tests run with it too, where it is built.
Without a library or a cargo they are skipped, and pytest counts them.
"""
