"""Model folders to operations: what config.json and the weights say, decoders of the built-in families, encoders.

`checkpoint` reads a folder without torch, `generator` builds the fastest decoder for it, `foreign` runs transformers'.
"""

from typing import Any

Config = dict[str, Any]
"""The content of a config.json, or a part of it."""
