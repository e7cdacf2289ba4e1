"""Classic models (`task: predict`): tensors in, tensors out, computed in a process of the model's own.

`batcher` and `fit` decide, and are pure; `executor` drives them and the child (`process/`). `formats/` has one module
for each runtime, imported in the child alone. `pool/` has many models in one server. `http/` is the API in front.
"""
