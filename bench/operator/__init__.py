"""How many ModelDeployments one operator manages, and what that costs: `make bench-operator`."""
