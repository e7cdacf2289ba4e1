"""The kind cluster itself: its configuration, coming up and going away."""
