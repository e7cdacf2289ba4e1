"""What a config.json describes: its task and family, layers, rotary embedding, and whether it can be served. Pure.

`architectures` finds the task and refuses what is not served, `families` describes the built-in decoders, `rope` the
kinds of rotary embedding; `support` answers how a model would be served, and why.
"""

from typing import Any

Config = dict[str, Any]
"""The content of a config.json, or a part of it."""
