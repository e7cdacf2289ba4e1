"""What computes a decoder: the same few operations in torch, for every device, and in C, for CPUs with the vectors.

`api` names the operations, `build` and `native.c` make those in C, `in_triton`, `paged` and `pointwise` those of a
GPU, and `packing` the tensors of a batch.
"""
