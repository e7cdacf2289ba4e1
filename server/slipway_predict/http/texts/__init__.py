"""Rerankers and classifiers of texts: the endpoints of Cohere's, Jina's and vLLM's APIs.

`api` has the routes, `bodies` the types of requests, `rows` checks texts, also those of the other APIs of classic
models, and reads the outputs of their models.
"""
