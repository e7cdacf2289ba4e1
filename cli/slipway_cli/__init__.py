"""`slipway` and `kubectl slipway`: a thin client of the API server."""
