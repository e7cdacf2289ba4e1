"""Loads model folders: checkpoints, decoders of the built-in families, and encoders.

`checkpoint` reads a folder without torch, `generator` builds the fastest decoder for it, `foreign` runs transformers'
own modules, `loader` loads them. `tokenizer_files`, `added_tokens` and `end_tokens` read what a folder has of a
tokenizer beside tokenizer.json.
"""
