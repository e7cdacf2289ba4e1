"""The control plane: reconciles ModelDeployments into revisions, traffic and status."""
