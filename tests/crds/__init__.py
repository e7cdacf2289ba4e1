"""The CRD on a real API server."""
