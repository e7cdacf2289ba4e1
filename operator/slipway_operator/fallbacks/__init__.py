"""Which fallbacks of ModelDeployments are not there.

`runner` knows which names each ModelDeployment has in spec.traffic, and has it reconciled again when one comes or goes.
`planning/conditions/fallbacks.py` decides what its status says.
"""
