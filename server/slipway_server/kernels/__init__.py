"""What computes a decoder: the same few operations in torch, for every device, and in C, for CPUs with the vectors."""
