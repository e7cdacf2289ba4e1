"""`slipway` and `kubectl slipway`: a thin client of the API server.

`commands` parse and print, `views` format, `rollouts` decide, `objects` read, `cluster` does input and output.
Imports go in this direction only; `api` has the names of the API, `errors` the exit codes.
"""
