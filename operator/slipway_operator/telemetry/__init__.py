"""What the operator reports about itself.

Prometheus metrics, structured logs and the health endpoints.
Other packages call it; it calls none of them.
"""
