"""Inputs of pods: the part of a ModelDeployment's spec that is the identity of a revision, and the Jobs of analyses.

`model` says where the weights are, `pod_inputs` which engine runs them, `pod_spec` nodes, resources and pod fields.
`job` has what a Job of an analysis may have.
"""
