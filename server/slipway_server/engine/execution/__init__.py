"""Computes a batch: runs packed tensors through the model and samples tokens; and sizes the memory for it.

`runner` runs the model, `sampler` chooses tokens, `sizing` and `memory` divide the memory, `profiler` measures steps.
"""
