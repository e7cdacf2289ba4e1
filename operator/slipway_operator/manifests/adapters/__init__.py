"""Manifests for the adapters of a ModelDeployment: the file that lists them, and the container that loads them."""
