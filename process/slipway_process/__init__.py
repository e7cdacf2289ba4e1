"""What every process of Slipway does alike: how it reads its settings and how it writes its log.

`settings` makes flags, variables, help and errors of the fields of one class; `values` has the types of these fields.
`logs` writes one JSON object per line. Operator, gateway, server and fetcher import this; it imports none of them.
"""
