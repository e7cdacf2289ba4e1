"""What commands print: tables, the tree of `slipway status`, live output, analyses and pictures.

A view reads objects and returns lines or a tree; only `tree` and `live` use the terminal, only `picture` writes a file.
A new output format of a command belongs here; reading a field of an API object belongs in `objects`.
"""
