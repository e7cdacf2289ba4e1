"""Experiments: standing A/B tests of ModelDeployments and revisions, by units such as users.

`spec` is what people write, `assignment` what the operator publishes of it and which arm a unit gets, `report` what
gateways count: gateways assign by it, the operator reports on it, and `slipway experiment explain` shows it.
"""
