"""What computes a batch: packed tensors through the model, then sampling; and the memory that this takes.

`runner` runs the model, `sampler` chooses tokens, `sizing` and `memory` divide the memory, `profiler` measures steps.
"""
