"""The gateway's API as a client with an API key sees it: files, batches and jobs.

`client` sends the requests; what is printed is decided in `views.batches`.
"""
