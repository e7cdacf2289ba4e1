"""Images as inputs of classic models: what a Hugging Face processor does to them, with Pillow and numpy alone.

`preprocessing` reads a preprocessor_config.json, `decoding` a JPEG or PNG, and `pixels` makes numbers of it.
`classifier` adds images and labels to the description of a model. Only the process that decodes imports Pillow.
"""
