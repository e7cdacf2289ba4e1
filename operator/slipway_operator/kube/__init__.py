"""All calls to the API server: `reading/` makes Observed of the cluster, `writing/` executes a Plan.

Here are the client, how to reach the API server, the kinds of objects, errors, and the Lease of who may write.
"""
