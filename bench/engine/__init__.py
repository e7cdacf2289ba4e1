"""The engine beside its peers: the same weights, workload and machine in one run."""
