"""Calls of OpenAI-compatible APIs of other providers, in place of a deployment that cannot answer.

`hosts` decides which of them may be called, `provider_request` what is sent, both pure. `keys` has their API keys,
which `secret_keys` reads from the API server. `client` sends one call, bounded in size and time, and takes nothing of a
response but its content: a provider is a stranger.
"""
