"""Loads model folders: checkpoints, decoders of the built-in families, and encoders.

`checkpoint` reads a folder without torch, `generator` builds the fastest decoder for it, `foreign` runs transformers'
own modules, `loader` loads them.
"""
