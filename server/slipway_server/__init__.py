"""The model pod: one model behind an OpenAI-compatible API, with its own batching engine."""
