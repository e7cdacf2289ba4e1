"""The inputs of a pod, as decided values: what makes one revision differ from another.

`pod_inputs` reads and writes them, `accelerator_types` knows which nodes have which device.
"""
