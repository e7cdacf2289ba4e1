"""The status of ModelRoutes, and the names that they want.

`runner` reads ModelRoutes and ReferenceGrants and writes, `planning/model_routes.py` decides.
"""
