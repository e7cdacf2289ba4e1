"""The compiled data plane in this process: whether it is there and wanted, and the port that it accepts on.

Its thread accepts and bounds connections and never attaches to Python. All that a client sends is served by `serving`,
which gets each connection with its first bytes; docs/plane.md describes both.
"""
