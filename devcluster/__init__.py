"""A real Kubernetes cluster on one machine, for the demo and the tests: `python -m devcluster --help`."""
