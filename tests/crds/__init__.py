"""The CRD, as a real API server takes it."""
