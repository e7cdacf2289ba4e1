"""What all processes of Slipway share: how they read settings, write logs and read lists.

`settings` makes flags, variables, help and errors from the fields of one class; `values` has the types of these fields.
`logs` writes one JSON object per line. `pages` reads lists of the Kubernetes API in bounded memory. `backoff` is how
long to wait after failures. `network` is how processes connect to each other. Operator, gateway, jobs, server and
fetcher import this; it imports none.
"""
