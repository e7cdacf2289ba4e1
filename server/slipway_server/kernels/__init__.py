"""The operations that compute a decoder: in torch for every device, in C for CPUs, and in Triton for GPUs.

`api` defines the operations, `in_torch` is the reference, `native` calls the C kernels (folder `c`), and `in_triton`
those for GPUs (folder `triton`). `packing` lays out the tensors of a batch.
"""
