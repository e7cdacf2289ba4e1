"""How the weights of a published checkpoint are quantized, by `quantization_config` in its config.json. Pure.

`schemes` names what a server can read, `fields` has the fields of each tool and what it accepts in them, `reading`
chooses the tool and refuses the rest by name. Tensors are read by the server's `models/layouts`.
"""
