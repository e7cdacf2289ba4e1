"""All input and output: the kubeconfig, the API server, and files with saved objects.

`client` is the only module that calls the API server; each error becomes a `CommandError` here.
A new request to the API server belongs here; nothing in this package decides or prints.
"""
