"""The Helm chart, rendered by the real helm and shown to a real API server."""
