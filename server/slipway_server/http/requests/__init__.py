"""What a client sends: bodies and headers, checked and converted for the engine.

`schemas` with `fields`, `sampling` and `messages` are the bodies, `bodies` refuses what is not implemented, `prompts`
makes token ids.
"""
