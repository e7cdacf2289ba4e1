"""ModelRoutes: public names that lead by rules to ModelDeployments.

`spec` is what people write, `rules` which rule a request fits and why the others do not, `references` where rules lead:
gateways route by them, the operator reports on them, and `slipway route explain` shows them.
"""
