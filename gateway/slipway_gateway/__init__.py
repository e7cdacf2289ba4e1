"""The edge of the data plane: routes every request to a revision and an endpoint."""
