"""The kernels for GPUs, written in Triton; `in_triton` launches them."""
