"""Which container engine runs the node, how it is configured, and what it leaves on the host."""
