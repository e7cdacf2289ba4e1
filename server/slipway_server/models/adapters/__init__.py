"""LoRA adapters in peft's format: what a folder holds, and whether it fits the model.

Everything in a folder may be anything: it is checked before a tensor is read, and what is not supported is refused by
the name of its field.
"""
