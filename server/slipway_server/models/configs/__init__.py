"""What a config.json describes: its task and family, layers, rotary embedding, and whether it can be served. Pure."""

from typing import Any

Config = dict[str, Any]
"""The content of a config.json, or a part of it."""
