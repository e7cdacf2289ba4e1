"""The kernels for GPUs, written in Triton; `in_triton` launches them.

`paged` is attention over the paged KV cache, `matvec` the products of a single token, `pointwise` what has neither, and
`sampling` draws tokens.
"""
