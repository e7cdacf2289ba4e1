"""The operations that compute a decoder: in torch for every device, in C for CPUs, and in Triton for GPUs.

`api` defines the operations, `in_torch` is the reference, `native` calls the C kernels (folder `c`); `in_triton`,
`paged`, `pointwise` and `sampling` are for GPUs. `packing` lays out the tensors of a batch.
"""
