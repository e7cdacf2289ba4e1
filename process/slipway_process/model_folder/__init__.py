"""The folder of a model, which the fetcher leaves and servers read: what is in it, and why it cannot be served.

`checkpoint` reads that of a language model without torch, `classic` finds the file of a classic model, `catalog` lists
the models of a pool. `architectures` and `rope` (pure) read a config.json: task, context, what is refused;
`tokenizer_files`, `added_tokens` and `end_tokens` read what a folder has of a tokenizer beside tokenizer.json.
"""

from typing import Any

Config = dict[str, Any]
"""The content of a config.json, or a part of it."""
