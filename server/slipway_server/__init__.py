"""The server of language models, behind an OpenAI-compatible API, with its own batching engine."""
