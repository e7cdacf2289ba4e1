"""Makes container images where none can be pulled, and the project's own images everywhere."""
