"""The kernels in C: one library for each instruction set, all made of the same source.

`build` names the instruction sets and compiles them, `library` loads the best one of this CPU; `native.c` includes the
rest of the source.
"""
