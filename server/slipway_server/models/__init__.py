"""Loads models: decoders of the built-in families, other decoders, and encoders.

`families` describes the built-in decoders by their config.json, `support` answers how a model would be served, and why
(pure). `generator` builds the fastest decoder for a folder, `foreign` runs transformers' own modules, `loader` loads.
"""
