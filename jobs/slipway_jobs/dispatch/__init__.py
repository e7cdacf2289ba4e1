"""Runs batches: validates them, sends their lines through the gateway, ends them.

`dispatcher` is the loop, `gateway_calls` sends one line, `validation` reads an input file.
"""
