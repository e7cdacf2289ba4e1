"""What a client sends: bodies and headers, checked and converted for the engine.

`schemas` with `fields`, `sampling` and `messages` are the bodies, `bodies` reads and decodes them, `prompts` makes
token ids; `tenant`, `priority` and `shadow` read the gateway's headers.
"""
