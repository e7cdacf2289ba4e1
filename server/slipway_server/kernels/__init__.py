"""What computes a decoder: the same few operations in torch, for every device, and in C, for CPUs with the vectors.

`api` names the operations, `native` calls those in C (folder `c`), `in_triton`, `paged` and `pointwise` those of a
GPU, and `packing` the tensors of a batch.
"""
