"""What a user of each peer writes to serve a model file. It runs in the peer's own environment, not in ours.

`runtime` is the same for all: one thread, the settings that our server has. BENCH_MODEL names the file, BENCH_BATCH the
rows of a batch; 1: no batches.
"""
