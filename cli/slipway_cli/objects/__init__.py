"""API objects as the commands read them: ModelDeployment, revision history, pods, the operator's Lease.

Pure: dictionaries of the API server in, frozen dataclasses out; unknown fields are ignored.
A new field of the status is read here, and nowhere else.
"""
