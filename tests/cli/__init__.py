"""The command line: decisions and pictures without a cluster, the verbs on a real API server."""
