"""What a config.json describes: its task and family, layers, rotary embedding, and whether it can be served. Pure.

`families` has the built-in decoders, `architectures` what they are made of, `rope` the kinds of rotary embedding, and
`support` the reasons for which a model is refused.
"""

from typing import Any

Config = dict[str, Any]
"""The content of a config.json, or a part of it."""
