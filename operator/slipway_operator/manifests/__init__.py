"""The shapes of the objects that the operator owns."""
