"""Metrics and logs of the process.

`metrics` declares every metric. `access_log` has a line for each request; `line_writer` brings the lines to a
`rotated_file` or to stdout. Of the gateway only what is below is imported here: `identity`, `quotas` and `wire`.
"""
