"""All calls to the API server: `reading/` builds Observed from the cluster, `writing/` executes a Plan.

`secrets/` keeps keys and certificates. This folder holds the client, its configuration, the kinds of objects, errors,
and the Lease of the one writer.
"""
