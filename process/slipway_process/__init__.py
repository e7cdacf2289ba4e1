"""What all processes of Slipway share: how they read settings, write logs and read lists.

`settings` makes flags, variables, help and errors from the fields of one class; `values` has the types of these fields.
`logs` writes one JSON object per line. `pages` reads lists of the Kubernetes API in bounded memory. `backoff` is how
long to wait after failures. `network` is how processes connect to each other, `serving` what both model servers have
around their routes, `model_folder` what these and the fetcher know of a model's files. Every process imports this; it
imports none.
"""
