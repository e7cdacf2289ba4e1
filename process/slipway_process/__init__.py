"""What every process of Slipway does alike: how it reads its settings, writes its log and reads lists.

`settings` makes flags, variables, help and errors of the fields of one class; `values` has the types of these fields.
`logs` writes one JSON object per line. `pages` reads lists of the Kubernetes API in bounded memory. `network`
is how processes connect to each other. Operator, gateway, jobs, server and fetcher import this; it imports none.
"""
