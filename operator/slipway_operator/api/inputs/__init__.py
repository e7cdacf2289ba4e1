"""Inputs of a pod: the part of a ModelDeployment's spec that is the identity of a revision.

`model` says where the weights are, `pod_inputs` which engine runs them, `pod_spec` nodes, resources and pod fields.
"""
