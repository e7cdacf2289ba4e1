"""The demo's parts that need no cluster."""
