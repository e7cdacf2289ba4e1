"""How many ModelDeployments one operator minds, and what that costs: `make bench-operator`."""
