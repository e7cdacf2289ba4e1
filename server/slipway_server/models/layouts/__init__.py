"""How published tools lay out the tensors of a quantized linear layer, and what numbers they mean.

One module for each tool. Each names its tensors, with their dtypes and shapes, before it reads one, and is pure after
that. `reading` chooses the module by the layer's tensors and by what config.json allows.
"""
