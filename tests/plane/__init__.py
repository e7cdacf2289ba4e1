"""The compiled data plane by itself: how it is built, and its pure functions beside those of Python.

The gateway's tests run with it too: `SLIPWAY_TEST_PLANE=required pytest tests/gateway`.
Without a library or a cargo they are skipped, and pytest counts them.
"""
