"""What a load test measured and what a model carries, and how many pods and how much money follow from that.

Pure: no clock, no chance and no I/O. `bench/` sends the load, `commands/sizing.py` reads files and the cluster.
"""
