"""Digests of the model's files, computed while they come, so that no byte of a download is read twice from its disk.

`known` keeps them until the marker is written, `growing` is a file that grows at its end, `following` one whose parts
come in any order.
"""
